// Offsets are known from LayOut before any bytes, so shards may be written in any order, each once; a shard that is
// missing or written twice is a defect of the caller. Hashes are of the bytes as they are given, not of those read
// back: what storage damages is found when the checkpoint is read.
#include "engine/io/checkpoint/rank_file.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/core/base/hash.h"
#include "engine/io/safetensors/reader.h"

namespace moonshard {

Result<RankFileWriter> RankFileWriter::Create(Storage& storage, const std::string& folder, const LaidOut& laid_out,
                                              size_t file) {
  const RankFile& rank_file = laid_out.manifest.rank_files[file];
  RankFileWriter writer(laid_out, file);
  Result<std::unique_ptr<WritableFile>> opened = storage.OpenForWriting(folder + "/" + rank_file.name);
  if (!opened.ok()) return opened.diagnostics();
  writer.file_ = std::move(opened).value();
  writer.hashes_.assign(laid_out.manifest.tensors.size(), 0);
  for (const ShardedTensor& tensor : laid_out.manifest.tensors) {
    writer.written_.push_back(!laid_out.manifest.LayoutOf(tensor).shards[file]);
  }
  const std::string header = HeaderOf(laid_out, file);
  if (Failure failed = writer.file_->Truncate(rank_file.bytes)) return *failed;
  if (Failure failed = writer.file_->Write(0, header.data(), header.size())) return *failed;
  return writer;
}

Failure RankFileWriter::Write(size_t tensor, const void* data, uint64_t bytes) {
  const ShardedTensor& of = laid_out_->manifest.tensors[tensor];
  const ShardDims& shard = *laid_out_->manifest.LayoutOf(of).shards[file_index_];
  Check(static_cast<uint64_t>(ShardBytes(of.dtype, shard)) == bytes,
        "RankFileWriter: the size of the shard differs from that of LayOut");
  Check(!written_[tensor], "RankFileWriter: the shard was already written");
  written_[tensor] = true;
  hashes_[tensor] = HashOf({static_cast<const char*>(data), bytes});
  return file_->Write(laid_out_->begin[file_index_][tensor], data, bytes);
}

Result<std::vector<uint64_t>> RankFileWriter::Finish() {
  Check(std::ranges::find(written_, false) == written_.end(), "RankFileWriter: Finish before all shards are written");
  if (Failure failed = file_->Sync()) return *failed;
  return hashes_;
}

}  // namespace moonshard
