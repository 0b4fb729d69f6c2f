package policy

import (
	"unicode"
	"unicode/utf8"
)

const (
	// maxNesting bounds brackets within brackets: the parser, and what comes after
	// it, recurse as deeply as a text nests.
	maxNesting = 64
	// maxPath bounds a path of attributes, a.b.c: the tree of "has a.b.c" grows
	// with the square of its length.
	maxPath = 64
)

// scan looks for what must not reach the parser, and for templates, of which the
// parser would say less. It returns nil if there is nothing.
func scan(text string) *Problem {
	s := scanner{line: 1}
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		if p := s.next(r); p != nil {
			return p
		}
		text = text[n:]
	}
	return nil
}

// scanner follows a text one character at a time.
type scanner struct {
	line, column int
	within       lexeme
	last         rune // the one before
	code         rune // the last of code that is no space
	nesting      int
	path         int // dots of the path being scanned
}

// lexeme is what a character is part of.
type lexeme int

const (
	inCode lexeme = iota
	inString
	inLine  // a comment to the end of the line
	inBlock // a comment to its end
)

func (s *scanner) next(r rune) *Problem {
	s.column++
	last := s.last
	s.last = r
	if r == '\n' {
		s.line, s.column = s.line+1, 0
	}
	switch s.within {
	case inString:
		switch {
		case last == '\\':
			s.last = 0 // an escaped backslash escapes nothing
		case r == '"', r == '\n':
			s.within = inCode
		}
		return nil
	case inLine:
		if r == '\n' {
			s.within = inCode
		}
		return nil
	case inBlock:
		if last == '*' && r == '/' {
			s.within, s.last = inCode, 0
		}
		return nil
	case inCode:
	}
	switch {
	case r == '"':
		s.within, s.last = inString, 0
	case last == '/' && r == '/':
		s.within = inLine
	case last == '/' && r == '*':
		s.within, s.last = inBlock, 0
	case !unicode.IsSpace(r) && r != '/': // a comment may begin; nothing else has one
		newWord := letter(r) && letter(s.code) && unicode.IsSpace(last)
		s.code = r
		return s.take(r, newWord)
	}
	return nil
}

// take takes a character that is neither a space nor in a string or a comment.
// newWord says that it follows another word without a dot between them.
func (s *scanner) take(r rune, newWord bool) *Problem {
	switch r {
	case '(', '[', '{':
		s.nesting, s.path = s.nesting+1, 0
		if s.nesting > maxNesting {
			return s.problem("the text nests more than 64 brackets", "split the condition into several policies")
		}
	case ')', ']', '}':
		s.nesting, s.path = max(0, s.nesting-1), 0
	case '.':
		if s.path++; s.path > maxPath {
			return s.problem("a path of attributes is longer than 64", "")
		}
	case '?':
		return s.problem("templates are not supported", `write an entity in the place of ?principal or ?resource, such as User::"…"`)
	default:
		if newWord || !letter(r) {
			s.path = 0
		}
	}
	return nil
}

// letter reports whether r may be in an identifier.
func letter(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

func (s *scanner) problem(message, hint string) *Problem {
	return &Problem{Line: s.line, Column: s.column, Message: message, Hint: hint}
}
