# Compares the facts with the real TensorFlow wheels; needs the network and pip. See docs/facts.md.
.PHONY: facts-check
facts-check:
	scripts/facts-check $(RELEASES)
