// A type lies in the tensor's BackendMeta, the one slot of a TensorImpl that LibTorch leaves to backends and copies to
// the tensors that autograd saves. A table by address would need an entry for each tensor of a step and would find the
// type of a dead tensor under an address that was used again; a table by storage cannot tell a view from its base. The
// metadata lives exactly as long as the tensor does.
//
// What it cannot see is a write through another tensor of the same memory. Autograd has that problem too, for tensors
// saved for a backward, and solves it with a version counter that all aliases share; the type notes the counter and
// holds for that version alone. Tensors of inference mode have no counter: their types are not checked for staleness.
// The results of unsafe_split and unsafe_chunk, which recurrent cells write into, share the memory of the operand and
// get a counter of their own, from 0 on, after they got their types. What the writes of one of them make void is found
// by the number of the split (OperatorChecker::WrittenApart).
#include "engine/analysis/types/typed_tensor.h"

#include <typeinfo>
#include <utility>

#include <c10/core/TensorImpl.h>

namespace moonshard {
namespace {

// What a new type keeps.
struct Notes {
  int64_t split = 0;
  bool of_host = false;
  Source source;
};

struct TypeMeta final : public c10::BackendMeta {
  TypeMeta(TensorType&& t, int64_t v, bool r, const Notes& n) : type(std::move(t)), version(v), rises(r), notes(n) {}

  TensorType type;
  int64_t version;
  bool rises;
  Notes notes;
};

// The class is final, so that comparing it is enough; a dynamic_cast searches the bases.
TypeMeta* MetaOf(const at::Tensor& tensor) {
  c10::BackendMeta* const kept = tensor.unsafeGetTensorImpl()->get_backend_meta();
  return kept == nullptr || typeid(*kept) != typeid(TypeMeta) ? nullptr : static_cast<TypeMeta*>(kept);
}

}  // namespace

int64_t VersionOf(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

void SetType(const at::Tensor& tensor, TensorType type, int64_t version, bool rises) {
  const TypeMeta* const before = MetaOf(tensor);
  tensor.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<TypeMeta>(
      std::move(type), version < 0 ? VersionOf(tensor) : version, rises, before == nullptr ? Notes() : before->notes));
}

void SetSplit(const at::Tensor& tensor, int64_t split) {
  if (TypeMeta* const meta = MetaOf(tensor)) meta->notes.split = split;
}

int64_t SplitOf(const at::Tensor& tensor) {
  const TypeMeta* const meta = MetaOf(tensor);
  return meta == nullptr ? 0 : meta->notes.split;
}

void SetHostMemory(const at::Tensor& tensor, bool of_host) {
  if (TypeMeta* const meta = MetaOf(tensor)) meta->notes.of_host = of_host;
}

bool IsHostMemory(const at::Tensor& tensor) {
  const TypeMeta* const meta = MetaOf(tensor);
  return meta != nullptr && meta->notes.of_host;
}

void SetSource(const at::Tensor& tensor, Source source) {
  if (TypeMeta* const meta = MetaOf(tensor)) meta->notes.source = source;
}

Source SourceOf(const at::Tensor& tensor) {
  const TypeMeta* const meta = MetaOf(tensor);
  return meta == nullptr ? Source() : meta->notes.source;
}

const TensorType* TypeOf(const at::Tensor& tensor) {
  const TypeMeta* const meta = MetaOf(tensor);
  if (meta == nullptr) return nullptr;
  const int64_t version = VersionOf(tensor);
  const int64_t written = version - meta->version;
  const bool counts_anew = version == 0 && written < 0;
  return written == 0 || (written == 1 && meta->rises) || counts_anew ? &meta->type : nullptr;
}

}  // namespace moonshard
