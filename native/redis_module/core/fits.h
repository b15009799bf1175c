/* Whether a call is one for a table: what flush_parse can't tell from the blob alone. */
#ifndef TOW_FITS_H
#define TOW_FITS_H

#include "flush.h"
#include "spec.h"

/* False: it carries what tables of its kind or optimizer don't take, or a value that is too long. O(values). */
bool flush_fits(const struct flush *f, const struct spec *spec, struct fault *fault);

#endif
