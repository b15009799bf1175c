#include "fits.h"

static const char *const kinds[] = {"embedding", "dense", "sequence", "record"};

static bool other_kind(const struct spec *spec, const char *what, uint32_t count, struct fault *fault)
{
    return fault_set(fault, FAULT_KIND, "a table of kind %s takes no %s, the call has %u", kinds[spec->kind], what,
                     count);
}

bool flush_fits(const struct flush *f, const struct spec *spec, struct fault *fault)
{
    const struct flush_head *h = &f->head;
    bool vectors = spec->kind == KIND_EMBEDDING || spec->kind == KIND_DENSE;
    if (h->appends && spec->kind != KIND_SEQUENCE)
        return other_kind(spec, "appends", h->appends, fault);
    if (h->values && spec->kind != KIND_RECORD)
        return other_kind(spec, "values", h->values, fault);
    if (h->flags & (FLUSH_GRADIENTS | FLUSH_DELTAS) && !vectors)
        return fault_set(fault, FAULT_KIND, "a table of kind %s has no vectors: flags %#x ask for gradients or deltas",
                         kinds[spec->kind], h->flags);
    if (h->flags & FLUSH_DELTAS && spec->optimizer.kind == OPTIMIZER_ADAM)
        return fault_set(fault, FAULT_BAD,
                         "flags %#x: optimizer adam takes no deltas, the changes of two callers' moments don't add up",
                         h->flags);
    for (uint32_t i = 0; i < h->values; i++)
        if (f->value_lengths[i] > spec->length)
            return fault_set(fault, FAULT_BAD, "value %u has %u bytes; the table keeps at most %u", i,
                             f->value_lengths[i], spec->length);
    return true;
}
