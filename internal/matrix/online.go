package matrix

import "imgsmith/internal/facts"

// registrySource is the evidence of what a registry answered.
func registrySource() facts.Evidence {
	return facts.Evidence{Source: "the registry, asked now", Confidence: "verified"}
}

// BaseFinding is what an entry is told when the registry did not give its base: gone when it has no such image,
// else that it could not be asked.
func (e Entry) BaseFinding(table *facts.Table, err error, gone bool) Finding {
	c := newCheck(e, table, nil)
	near := c.imageFor()
	if gone {
		c.add("base", "base-gone", Refuse, registrySource(), near, "base %s is not in the registry: tags of old releases are deleted there", e.Base)
	} else {
		c.add("base", "base-tag", Warn, registrySource(), "", "base %s could not be asked for: %v", e.Base, err)
	}
	return c.withRemedies()[0]
}

// TagReferences are the references that the entry would publish, as far as they are known before resolution.
func (e Entry) TagReferences(table *facts.Table) []string { return e.lintTags(table) }

// TagFinding tells that a tag is there already.
func (e Entry) TagFinding(ref string) Finding {
	c := &check{e: e}
	c.add("publish", "tag-exists", Note, registrySource(), "", "%s is there already: publishing moves it", ref)
	return c.withRemedies()[0]
}

func (c *check) withRemedies() []Finding {
	for i := range c.findings {
		r, _ := RuleByID(c.findings[i].Rule)
		c.findings[i].Remedy = r.Remedy
	}
	return c.findings
}
