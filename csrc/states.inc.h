/* The recursions with states of one type: STATE, SV(op) (a vector operation on it), SW (its lanes), SFN(name). */
#include "units.inc.h"
#include "spread.inc.h"
#include "steps.inc.h"
#include "lattice.inc.h"
#include "narrow.inc.h"
#include "border.inc.h"
#include "checkpoint.inc.h"

#undef DEAD
#undef BUDGET
#undef BELOW
#undef MOST_EXPONENT
#undef FLUSH_BUDGET
#undef RANGE_LIMIT
#undef EDGED
#undef OWN
#undef STORE_REAL
#undef STORE_STATES
#undef STATE
#undef STATE_IS_DOUBLE
#undef SV
#undef SW
#undef SFN
