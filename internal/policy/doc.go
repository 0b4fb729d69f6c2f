// Package policy decides what the rules of a project allow. Its one job is to
// compile their Cedar texts and to answer one request after the other: may this
// identity call this tool with these arguments, does somebody have to approve
// it, who. It does no I/O, keeps no state beside the compiled rules and knows of
// no default but no.
//
// # Failing closed
//
// Cedar skips a policy whose evaluation errs, which would open what a forbid
// closes. Here:
//
//	access (call, approve, approveRun, use, fetch)
//	  a forbid errs        denied
//	  a permit errs        it permits nothing
//	gates (requireApproval, holdRun)
//	  a permit errs        the approval is required
//	  a forbid errs        it exempts nothing
//	the request as a whole cannot be evaluated
//	                       denied, and required
//
// # Policies without an action
//
// A permit has to name its actions: one that does not would let everybody
// approve what it makes wait. A forbid without an action denies all access. At a
// gate a forbid exempts from approval, so there it counts only if it names the
// gate.
//
// # Arguments
//
// Conditions on context.args and context.ceil see the arguments of the very
// call. What no Cedar value can hold (a number beyond decimal and Long, a large
// array of mixed values) becomes a String: a condition that computes with it
// errs, and so fails closed. In context.ceil such a number is the nearest Long.
//
// # Reading
//
// Request.AnyArguments asks whether the call would be allowed for some
// arguments, for who reads what a tool gave. What a condition says about
// arguments then counts as met in a permit and as not met in a forbid; all else
// counts as ever, also within the same condition: principal.name == "ann" &&
// context.args.n > 3 permits ann, and nobody else. A reader is in no run: if the
// request has none, conditions on context.run are treated in the same way.
package policy
