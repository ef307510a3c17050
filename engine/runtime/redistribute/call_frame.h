// CallFrame: one call of a hookable module, on the thread that runs it. Frames nest. A frame owns the redistributions
// that the calls inside it share (shared_redistributions.h), and the exchanges of tokens that were started inside it
// (exchanges_ahead.h). The outermost frame also owns the sizes of dims that were sharded while it runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace moonshard {

class AxisGroup;
class ExchangesAhead;
class SharedRedistributions;
class StartedExchanges;

class CallFrame {
 public:
  CallFrame();
  ~CallFrame();
  CallFrame(const CallFrame&) = delete;
  CallFrame& operator=(const CallFrame&) = delete;

  // The innermost frame of this thread; nullptr if there is no frame.
  static CallFrame* Current();
  bool outermost() const { return enclosing_ == nullptr; }
  // nullptr: no frame encloses this one.
  CallFrame* enclosing() const { return enclosing_; }
  // The redistributions that the calls inside this frame share.
  SharedRedistributions& redistributions();
  StartedExchanges& started_exchanges();
  // Of the outermost frame, for all frames inside it: the exchanges of the model that may be started; null: none.
  void SetExchanges(std::shared_ptr<const ExchangesAhead> exchanges) { exchanges_ = std::move(exchanges); }
  const ExchangesAhead* exchanges() const { return root_->exchanges_.get(); }

  // Records, until the outermost frame ends, that dim `dim` of `size` elements was sharded over `group`. Does nothing
  // without a frame.
  static void NoteSize(const AxisGroup& group, int64_t dim, int64_t size);
  // Returns the size of dim `dim` that was recorded for `group`, if exactly one size was recorded. Every rank runs the
  // same redistributions in the same frames, so every rank gets the same result. The size must not be inferred from the
  // rank's own shard, because other ranks could infer another size: over 4 ranks, dims of 5 and of 6 elements have
  // equal shards on some ranks and different shards on others.
  static std::optional<int64_t> OnlySize(const AxisGroup& group, int64_t dim);

 private:
  struct Sizes;

  CallFrame* enclosing_;
  CallFrame* root_;
  std::unique_ptr<SharedRedistributions> redistributions_;
  std::unique_ptr<StartedExchanges> started_exchanges_;
  std::shared_ptr<const ExchangesAhead> exchanges_;
  std::unique_ptr<Sizes> sizes_;
};

}  // namespace moonshard
