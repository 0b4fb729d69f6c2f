package guestwire

// NewTail is a tail of an exec's output.
func NewTail(limit int64) *Tail { return newTail(limit) }

// Acknowledge is what a host that was sent so many bytes of a tail says of
// them.
func Acknowledge(t *Tail, sent, offset int64) error {
	return (&tailOut{t: t, sent: sent}).ack(offset)
}
