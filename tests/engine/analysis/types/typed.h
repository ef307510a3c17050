// Tensors with types of one axis, two ranks of which this is the first.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <catch2/catch.hpp>

#include "engine/analysis/types/operator_checker.h"
#include "engine/runtime/intercept/operator_scope.h"

namespace moonshard::test {

class OneAxis {
 public:
  OneAxis() : checker({{MeshAxis::kTp, 2, 0}}, RuleTable::BuiltIn()) {}

  static at::Tensor As(const at::Tensor& tensor, const AxisType& type) {
    SetType(tensor, TensorType(1, type));
    return tensor;
  }
  static at::Tensor Same(at::IntArrayRef sizes) { return As(at::rand(sizes), AxisType::Replicate()); }
  static at::Tensor Terms(at::IntArrayRef sizes) { return As(at::rand(sizes), AxisType::Partial()); }
  static at::Tensor Piece(int64_t dim, at::IntArrayRef sizes) {
    return As(at::rand(sizes), TypeOfLayout(Layout::Shard(static_cast<int>(dim)), sizes, -1, 2, 0));
  }
  // A shard of a dim that the ranks do not divide.
  static at::Tensor Uneven(int64_t dim, at::IntArrayRef sizes) {
    const int64_t size = 2 * sizes[static_cast<size_t>(dim)] - 1;
    return As(at::rand(sizes), TypeOfLayout(Layout::Shard(static_cast<int>(dim)), sizes, size, 2, 0));
  }
  static at::Tensor Places(at::IntArrayRef sizes) { return As(at::zeros(sizes, at::kLong), AxisType::Replicate()); }

  // The type of what `body` makes, or "fault: ..." of the first thing that is wrong.
  template <class Body>
  std::string Of(Body&& body) {
    at::Tensor made;
    {
      const OperatorScope scope(checker);
      made = body();
    }
    if (!checker.faults().empty()) return "fault: " + checker.faults().front().message;
    if (!checker.unproven().empty()) return "unproven: " + checker.unproven().begin()->first;
    return checker.Get(made)[0].ToString();
  }

  OperatorChecker checker;
};

inline at::Tensor Same(at::IntArrayRef sizes) { return OneAxis::Same(sizes); }
inline at::Tensor Terms(at::IntArrayRef sizes) { return OneAxis::Terms(sizes); }
inline at::Tensor Piece(int64_t dim, at::IntArrayRef sizes) { return OneAxis::Piece(dim, sizes); }
inline at::Tensor Uneven(int64_t dim, at::IntArrayRef sizes) { return OneAxis::Uneven(dim, sizes); }
inline at::Tensor Places(at::IntArrayRef sizes) { return OneAxis::Places(sizes); }

struct RuleCase {
  const char* what;
  const char* expected;  // a type, or the beginning of "fault: ..."
  std::function<at::Tensor()> body;
};

inline void Run(const std::vector<RuleCase>& cases) {
  for (const RuleCase& one : cases) {
    INFO(one.what);
    const std::string got = OneAxis().Of(one.body);
    CHECK(got.substr(0, std::string(one.expected).size()) == one.expected);
  }
}

}  // namespace moonshard::test
