// Context: decides whether a plan for a mesh with cp shards the sequence over its ranks (context parallelism), and with
// which attention: "ulysses", which exchanges heads, "ring", which passes keys and values on, or, on two factors of cp,
// "ulysses_ring".
// Stage before: sequence.h. Stage after: write.h.
#pragma once

#include "dsl/planning/suggest/suggest.h"
#include "dsl/planning/suggest/write.h"

namespace moonshard {

// Sets Draft::context and context_why, or Draft::no_context. A plan whose sequence may be sharded from the embedding to
// the head has context parallelism if all of its blocks are known in it; one kind of attention is then chosen by
// `request.sent` (ContextRequest::wanted).
void OfferContext(const ContextRequest& request, Draft& draft);

}  // namespace moonshard
