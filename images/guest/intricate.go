package main

import "slices"

const (
	mostHead      = 64 << 10 // of a message's header, its parent's, and its metadata
	smallContent  = 64 << 10 // which takes no time to read, whatever is in it
	mostIntricacy = 1 << 20  // a value each; what takes a reader about 30 ms
	plainDigits   = 20       // of a number; one of thousands takes as long as many values
)

// isIntricate reports whether a message holds so many values that whoever reads it, and others besides,
// would be held up by it. Text may be as long as it likes.
func isIntricate(parts [][]byte) bool {
	i := slices.IndexFunc(parts, isDelimiter)
	if i < 0 || i+5 >= len(parts) {
		return false // it is no message, and nobody reads it
	}
	for _, head := range parts[i+2 : i+5] {
		if len(head) > mostHead {
			return true
		}
	}
	return len(parts[i+5]) > smallContent && intricacy(parts[i+5]) > mostIntricacy
}

// intricacy is about how many values there are in a JSON text, those with names and those that hold
// others counted for what they cost.
func intricacy(text []byte) (values int) {
	quoted, escaped, digits := false, false, 0
	for _, c := range text {
		switch {
		case escaped:
			escaped = false
			if c == 'u' {
				values++
			}
		case quoted:
			escaped = c == '\\'
			quoted = c != '"'
		case '0' <= c && c <= '9':
			if digits++; digits > plainDigits && digits%4 == 0 {
				values++
			}
		case c == '"':
			quoted = true
			values += 4
		case c == ',':
			values++
			digits = 0
		case c == '{', c == '[':
			values += 8
		case c == ':':
			values += 20
		}
	}
	return values
}
