// ProgramModule: one module of an exported program: a torch::nn::Module with the parameters and children of the
// original, and calls that a plan can intercept. A call runs the compiled body of that call (body.h).
//
// Part of program.h: the Program is the root module and constructs the other modules.
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
  // The local shape of each tensor of the program, by index. All dims have the full size, except those that the plan
  // shards over tp.
  std::vector<std::vector<int64_t>> shapes;
  // By the index of a tied tensor: the indices of all tensors that are tied with this tensor, and its own index.
  std::map<uint32_t, std::shared_ptr<std::vector<uint32_t>>> ties;
  // The device of the inputs. Operators that name the device of the export make their tensors on this device.
  at::Device device = at::Device(at::kCPU);
};

class ProgramModule : public torch::nn::Module, public Hookable {
 public:
  ProgramModule(std::string path, std::string kind, std::shared_ptr<ProgramShared> shared)
      : path_(std::move(path)), kind_(std::move(kind)), shared_(std::move(shared)) {}

  const std::string& path() const { return path_; }
  std::string_view Kind() const override { return kind_; }

  // Runs one of the module's calls, with the steps of the boundary if a plan has set a boundary. `inputs`: the inputs
  // of the call's body; moved from. Returns the outputs of the body. `gradients`: whether gradients were enabled when
  // the program was called; only then a region of the graph that enables gradients has an effect.
  std::vector<c10::IValue> Call(int32_t occurrence, std::vector<c10::IValue> inputs, bool gradients);

  bool HoldBack(std::string_view parameter) override;
  void ReleaseBack(std::string_view parameter) override;
  bool SetLocalRows(int64_t first, int64_t rows, int64_t total) override;
  void SetLocalShape(std::string_view tensor, at::IntArrayRef shape) override;
  bool SetLowRank(std::shared_ptr<const LowRank> term) override;
  bool CanRunThrough() const override { return true; }

 protected:
  const std::shared_ptr<ProgramShared>& shared() const { return shared_; }

 private:
  friend class ProgramBuilder;
  friend class BodyRunner;

  // A body with the tensors and modules that it names.
  struct BoundBody {
    std::shared_ptr<const program::Body> body;
    std::vector<at::Tensor> parameters;    // parallel to body->parameters: the registered tensors
    std::vector<ProgramModule*> children;  // parallel to body->children; owned by the tree
    int32_t first_call = 0;                // added to the occurrences in the body: those of earlier graphs come first
  };

  // Whether the graph has no call of this module.
  bool IsNeverCalled() const { return bodies_.empty() && !torn_; }
  std::vector<c10::IValue> CallThrough(const BoundBody& bound, std::vector<c10::IValue> inputs, bool gradients);
  const BoundBody& BodyOf(int32_t occurrence) const;

  std::string path_;
  std::string kind_;
  std::shared_ptr<ProgramShared> shared_;
  std::map<std::string, uint32_t, std::less<>>
      tensor_index_;  // by name of the module's own tensors: index in the program
  // By occurrence; the occurrences of each further graph come after those of the graphs before. `body` is null for an
  // occurrence that a graph does not have.
  std::vector<BoundBody> bodies_;
  bool torn_ = false;      // the nodes of some call belong to the call around it (CallTree::torn)
  std::string held_back_;  // the parameter that is held back, by its name in bodies (".bias"); "": none
  std::optional<nn::LocalRows> local_rows_;
  at::Tensor local_table_;  // the table that has these rows
  std::shared_ptr<const LowRank> low_rank_;
  at::Tensor adapted_;  // the weight beside which `low_rank_` is added
};

}  // namespace moonshard
