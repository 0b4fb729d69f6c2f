package policy

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/cedar-policy/cedar-go"
)

const (
	// decimalPlaces is how many places Cedar's decimal has.
	decimalPlaces = 4
	// maxExponent is far beyond what any Cedar number can hold, and small enough to
	// calculate with.
	maxExponent = 1 << 30
	// maxDigits are those of the largest int64.
	maxDigits = 19
)

// number converts a JSON number: to a Long if it is whole, whichever way it is
// written, to a decimal if not, rounded up to four places. One that neither can
// hold becomes its text: whatever compares it with a number errs. ceil is the
// Long that it is rounded up to, or the nearest there is.
func number(text string) (arg, ceil cedar.Value) {
	n := parseNumeral(text)
	up, fits := n.roundUp(0)
	ceil = cedar.Long(up)
	if n.exponent >= 0 {
		if fits {
			return ceil, ceil
		}
		return cedar.String(n.String()), ceil
	}
	if scaled, fits := n.roundUp(decimalPlaces); fits {
		if d, err := cedar.NewDecimal(scaled, -decimalPlaces); err == nil {
			return d, ceil
		}
	}
	return cedar.String(n.String()), ceil
}

// numeral is the value ±digits × 10^exponent. Its digits neither begin nor end
// with 0; of zero there are none, and the exponent is 0.
type numeral struct {
	negative bool
	digits   string
	exponent int
}

// parseNumeral takes text that is a JSON number.
func parseNumeral(text string) numeral {
	mantissa, exponent := text, 0
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		mantissa = text[:i]
		var err error
		if exponent, err = strconv.Atoi(text[i+1:]); err != nil || exponent > maxExponent || exponent < -maxExponent {
			exponent = maxExponent
			if text[i+1] == '-' {
				exponent = -maxExponent
			}
		}
	}
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	exponent -= len(fraction)
	trimmed := strings.TrimRight(digits, "0")
	exponent += len(digits) - len(trimmed)
	if trimmed == "" {
		return numeral{}
	}
	return numeral{negative: negative, digits: trimmed, exponent: exponent}
}

// String is the same text for every way to write the number.
func (n numeral) String() string {
	sign := ""
	if n.negative {
		sign = "-"
	}
	return fmt.Sprintf("%s%se%d", sign, n.digits, n.exponent)
}

// roundUp is the value × 10^places, rounded towards +∞. One that an int64 does
// not hold is not ok, and the nearest that there is.
func (n numeral) roundUp(places int) (value int64, ok bool) {
	exponent := n.exponent + places
	if n.digits == "" || len(n.digits)+exponent <= 0 { // less than 1
		if n.digits != "" && !n.negative {
			return 1, true
		}
		return 0, true
	}
	text, nearest := "+", int64(math.MaxInt64)
	if n.negative {
		text, nearest = "-", math.MinInt64
	}
	if len(n.digits)+exponent > maxDigits {
		return nearest, false
	}
	if exponent >= 0 {
		text += n.digits + strings.Repeat("0", exponent)
	} else {
		text += n.digits[:len(n.digits)+exponent]
	}
	value, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil:
		return nearest, false
	case exponent >= 0 || n.negative: // exact, or cut off towards zero
		return value, true
	case value == math.MaxInt64:
		return nearest, false
	}
	return value + 1, true
}
