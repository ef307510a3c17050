// The rules of operators, in the files of this folder by idea; size_rules.cc has the operators of each rule. A rule
// computes the local size of every dim of its results; the full sizes are those of the trace. A result that a rule does
// not set is unknown. Internal to engine/graph.
#pragma once

#include "engine/graph/size_rules/node_sizes.h"

namespace moonshard::graph::rules {

using Kind = SizeConflict::Kind;

// --- elementwise.cc: elementwise operators, copies, and new tensors

void Elementwise(NodeSizes& n);
// Each operand in the shape of all together.
void BroadcastAll(NodeSizes& n);
// Of the shape of the first operand, whatever the others are: written in place, sorted, scanned.
void LikeFirst(NodeSizes& n);
// The elements of the source in the shape of the tensor, which are all that is left of it.
void Copy(NodeSizes& n);
// One slope, or one for each channel.
void PRelu(NodeSizes& n);
// Of sizes that are given.
void Make(NodeSizes& n);
// Counts from 0 on every rank, so that its end must not be the size of a shard.
void Arange(NodeSizes& n);
void OneHot(NodeSizes& n);
// Of operators without results.
void Nothing(NodeSizes& n);

// --- views.cc: the same elements in other dims, and repeated elements

void View(NodeSizes& n);
void ViewAs(NodeSizes& n);
void Flatten(NodeSizes& n);
void Unflatten(NodeSizes& n);
void Permute(NodeSizes& n);
void Unsqueeze(NodeSizes& n);
void Squeeze(NodeSizes& n);
void Expand(NodeSizes& n);
void ExpandAs(NodeSizes& n);
void Repeat(NodeSizes& n);
void RepeatInterleave(NodeSizes& n);
void ViewAsReal(NodeSizes& n);
void ViewAsComplex(NodeSizes& n);

// --- parts.cc: parts of a dim, and dims that are made of several

void SplitWithSizes(NodeSizes& n);
// Parts of one size, the last one smaller.
void Split(NodeSizes& n);
void Slice(NodeSizes& n);
void Select(NodeSizes& n);
// A part of one dim is replaced.
void ReplacePart(NodeSizes& n);
void Cat(NodeSizes& n);
void Stack(NodeSizes& n);
// Dims that are padded must be full.
void Pad(NodeSizes& n);

// --- indices.cc: reads and writes at indices, which are those of the full dim, and at the places of a mask

void IndexSelect(NodeSizes& n);
// Of the shape of the index, which says where to look along one dim.
void Gather(NodeSizes& n);
// Advanced indexing without masks.
void Index(NodeSizes& n);
void Embedding(NodeSizes& n);
// Writes of a source at the indices of one dim: index [k], or no source.
void WriteAlong(NodeSizes& n);
// Writes at an index of as many dims as the tensor.
void ScatterAlong(NodeSizes& n);
// Writes at indices of some dims, or at the places of masks. How many elements a mask selects depends on its values.
void WriteAt(NodeSizes& n);
// Takes the elements of the source in their order. Rows of a shard of the features follow each other in both.
void MaskedScatter(NodeSizes& n);

// --- products.cc: products of matrices, attention, and what else combines the rows of two operands

void Linear(NodeSizes& n);
void Matmul(NodeSizes& n);
void AddMatmul(NodeSizes& n);
// The equation gives every dim a letter.
void Einsum(NodeSizes& n);
// aten::_grouped_mm(self [tokens, in], mat2 [experts, in, out], offs [experts]).
void GroupedMatmul(NodeSizes& n);
void Attention(NodeSizes& n);
void Convolution(NodeSizes& n);
// X of A X = B, with the batch of both.
void SolveTriangular(NodeSizes& n);
// The vector product, of three elements along a dim.
void Cross(NodeSizes& n);
// The distances of each row of one operand to each row of the other.
void Distances(NodeSizes& n);
// A result that depends on all elements of two operands along one dim, which goes.
void AlongBoth(NodeSizes& n);

// --- reductions.cc: reductions, norms, losses, and what else depends on several elements along a dim

// The sum over a sharded dim is partial; any other reduction of shards is no term of the reduction of the full dim.
void Reduce(NodeSizes& n);
// max and min of one tensor reduce, of two compare.
void MaxOrMin(NodeSizes& n);
// Results that depend on all elements along a dim, the argument `dim` or `dims`.
void AlongGivenDim(NodeSizes& n);
void AlongGivenDims(NodeSizes& n);
// Which elements are kept depends on their place in the last two dims.
void Triangle(NodeSizes& n);
// Differences of neighbors along a dim, with more elements at its ends.
void Diff(NodeSizes& n);
void TopK(NodeSizes& n);
void CountInBins(NodeSizes& n);
void Norm(NodeSizes& n);
// Statistics of each channel: those of the buffers, or, in training, of all elements of the channel.
void BatchNorm(NodeSizes& n);
// Results that depend on all elements of all dims but the first, the batch.
void AllButBatch(NodeSizes& n);
// Windows over the dims behind the channels.
void Pool(NodeSizes& n);
// Sizes of the dims behind the channels are those of the result.
void Upsample(NodeSizes& n);
// A loss of pairs of elements: of each pair, their sum, or (the default) their mean.
void LossOfPairs(NodeSizes& n);
void Loss(NodeSizes& n);

}  // namespace moonshard::graph::rules
