package redact

// automaton finds any of a set of words in one pass (Aho and Corasick, 1975).
type automaton struct {
	nodes []node
	root  [256]int32 // where each byte leads from the beginning
}

type node struct {
	edges []edge
	fail  int32 // the longest other beginning of a word that the text may be in
	depth int32 // bytes of the text that the node stands for
	match int32 // length of the longest word that ends here; 0: none
}

type edge struct {
	by byte
	to int32
}

// fold makes equal what forms do not tell apart: a space may be written as +.
func fold(b byte) byte {
	if b == '+' {
		return ' '
	}
	return b
}

func newAutomaton(words []string) *automaton {
	a := &automaton{nodes: make([]node, 1)}
	for _, w := range words {
		at := int32(0)
		for i := range len(w) {
			at = a.child(at, fold(w[i]))
		}
		a.nodes[at].match = int32(len(w))
	}
	for _, e := range a.nodes[0].edges {
		a.root[e.by] = e.to
	}
	a.root['+'] = a.root[fold('+')]
	queue := make([]int32, 0, len(a.nodes))
	for _, e := range a.nodes[0].edges {
		queue = append(queue, e.to)
	}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for _, e := range a.nodes[at].edges {
			fail := a.step(a.nodes[at].fail, e.by)
			n := &a.nodes[e.to]
			n.fail = fail
			if n.match == 0 {
				n.match = a.nodes[fail].match
			}
			queue = append(queue, e.to)
		}
	}
	return a
}

func (a *automaton) child(at int32, by byte) int32 {
	if to := a.nodes[at].next(by); to != 0 {
		return to
	}
	to := int32(len(a.nodes))
	a.nodes = append(a.nodes, node{depth: a.nodes[at].depth + 1})
	a.nodes[at].edges = append(a.nodes[at].edges, edge{by, to})
	return to
}

func (n *node) next(by byte) int32 {
	for _, e := range n.edges {
		if e.by == by {
			return e.to
		}
	}
	return 0
}

// step goes on from a node by one byte of the text.
func (a *automaton) step(at int32, b byte) int32 {
	if at == 0 {
		return a.root[b]
	}
	return a.stepFrom(at, fold(b))
}

func (a *automaton) stepFrom(at int32, b byte) int32 {
	for at != 0 {
		if to := a.nodes[at].next(b); to != 0 {
			return to
		}
		at = a.nodes[at].fail
	}
	return a.root[b]
}

// ends is the length of the longest word that ends at a node; 0: none.
func (a *automaton) ends(at int32) int {
	if at == 0 {
		return 0
	}
	return int(a.nodes[at].match)
}
