// ProgramModule: one module of an exported program: a torch::nn::Module with the parameters and children of the
// original, and calls that a plan can intercept. A call runs the compiled body of that call (body.h).
//
// Part of program.h, whose Program is the root. Not made by hand.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include "engine/models/program/body.h"
#include "engine/runtime/nn/boundary.h"
#include "engine/runtime/nn/local_rows.h"

namespace moonshard {

// What the modules of one program share.
struct ProgramShared {
  // By index of the program's tensors: the local shape, full but for what the plan shards over tp.
  std::vector<std::vector<int64_t>> shapes;
  // By index: the indices of all tensors that are one with it, itself too; tied ones alone.
  std::map<uint32_t, std::shared_ptr<std::vector<uint32_t>>> ties;
  // Of the inputs: operators that name the device of the export make their tensors here.
  at::Device device = at::Device(at::kCPU);
};

class ProgramModule : public torch::nn::Module, public Hookable {
 public:
  ProgramModule(std::string path, std::string kind, std::shared_ptr<ProgramShared> shared)
      : path_(std::move(path)), kind_(std::move(kind)), shared_(std::move(shared)) {}

  const std::string& path() const { return path_; }
  std::string_view Kind() const override { return kind_; }

  // One of the module's calls. `inputs`: of its body, used up; returns the outputs. Runs the boundary's steps where a
  // plan has set one. `gradients`: whether gradients were on where the program was called: a region of the graph that
  // switches gradients on does so only then.
  std::vector<c10::IValue> Call(int32_t occurrence, std::vector<c10::IValue> inputs, bool gradients);

  bool HoldBack(std::string_view parameter) override;
  void ReleaseBack(std::string_view parameter) override;
  bool SetLocalRows(int64_t first, int64_t rows, int64_t total) override;
  void SetLocalShape(std::string_view tensor, at::IntArrayRef shape) override;
  bool CanRunThrough() const override { return true; }

 protected:
  const std::shared_ptr<ProgramShared>& shared() const { return shared_; }

 private:
  friend class ProgramBuilder;
  friend class BodyRunner;

  // A body with what it names.
  struct BoundBody {
    std::shared_ptr<const program::Body> body;
    std::vector<at::Tensor> parameters;    // parallel to body->parameters: the registered tensors
    std::vector<ProgramModule*> children;  // parallel to body->children; owned by the tree
    int32_t first_call = 0;                // of its graph: added to the occurrences that the body names
  };

  // Whether nothing of the program computes with its own tensors as its own.
  bool IsNeverCalled() const { return bodies_.empty() && !torn_; }
  std::vector<c10::IValue> CallThrough(const BoundBody& bound, std::vector<c10::IValue> inputs, bool gradients);
  const BoundBody& BodyOf(int32_t occurrence) const;

  std::string path_;
  std::string kind_;
  std::shared_ptr<ProgramShared> shared_;
  std::map<std::string, uint32_t, std::less<>> tensor_index_;  // own tensors by name: index of the program's
  // By occurrence, those of one graph of the program behind those of another; without a body where it was never
  // recorded.
  std::vector<BoundBody> bodies_;
  bool torn_ = false;      // some call of it is part of the call around it (CallTree::torn)
  std::string held_back_;  // ".bias", as bodies name it; "": nothing
  std::optional<nn::LocalRows> local_rows_;
  at::Tensor local_table_;  // that has them
};

}  // namespace moonshard
