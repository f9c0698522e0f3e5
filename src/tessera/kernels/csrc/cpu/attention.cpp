#include "attention.h"

#include "export.h"

using namespace tessera;

EXPORT int tessera_attention(const Attention* attention, const Step* step) { return run_attention(*attention, *step); }
