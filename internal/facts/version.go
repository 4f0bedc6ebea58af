package facts

import (
	"cmp"
	"strconv"
	"strings"
)

// Compare orders two dotted versions such as "535.104.05", "9.3.0.75" or "8.9" by their numbers: -1, 0 or 1.
// Missing parts count as 0; what follows the digits of a part is ignored ("2.15.0.post1" equals "2.15.0").
func Compare(a, b string) int {
	for a != "" || b != "" {
		var x, y int
		x, a = leading(a)
		y, b = leading(b)
		if x != y {
			return cmp.Compare(x, y)
		}
	}
	return 0
}

// leading takes the first number off a version. What follows the digits of a part ends the version, and so does a
// part without digits.
func leading(v string) (n int, rest string) {
	end := 0
	for end < len(v) && v[end] >= '0' && v[end] <= '9' && end < 9 {
		n = n*10 + int(v[end]-'0')
		end++
	}
	if end == 0 || end == len(v) || v[end] != '.' {
		return n, ""
	}
	return n, v[end+1:]
}

// Minor returns the first two parts of a version: "12.5" of "12.5.82". A version with one part is returned
// as it is.
func Minor(version string) string {
	p := strings.SplitN(version, ".", 3)
	if len(p) < 2 {
		return version
	}
	return p[0] + "." + p[1]
}

// Major returns the number before the first dot, or 0 when there is none.
func Major(version string) int { return at(parts(version), 0) }

// Dotted tells whether s is one to four numbers with dots between them.
func Dotted(s string) bool {
	ps := strings.Split(s, ".")
	if len(ps) > 4 {
		return false
	}
	for _, p := range ps {
		if n, err := strconv.Atoi(p); err != nil || n < 0 || p[0] == '+' || len(p) > 8 {
			return false
		}
	}
	return true
}

func parts(v string) []int {
	var out []int
	for p := range strings.SplitSeq(v, ".") {
		end := 0
		for end < len(p) && p[end] >= '0' && p[end] <= '9' && end < 9 {
			end++
		}
		n, err := strconv.Atoi(p[:end])
		if err != nil {
			break
		}
		out = append(out, n)
		if end < len(p) {
			break
		}
	}
	return out
}

func at(p []int, i int) int {
	if i < len(p) {
		return p[i]
	}
	return 0
}
