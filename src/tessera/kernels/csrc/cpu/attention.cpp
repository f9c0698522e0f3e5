#include "attention.h"

#include "export.h"

using namespace tessera;

EXPORT int tessera_attention(const Attention* attention, const Metadata* metadata, const float* qkv, uint8_t* cache,
                             int64_t num_pages, float* out) {
  return run_attention(*attention, Step{*metadata, qkv, cache, num_pages, out});
}
