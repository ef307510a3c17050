// Calls through MOONSHARD_MODULE: every form of call reaches the hook, arguments and results have their positions, and
// what cannot be intercepted stays as it was.
#include "engine/runtime/nn/hook.h"

#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <catch2/catch.hpp>

#include "engine/core/base/diagnostic.h"
#include "engine/runtime/nn/kind.h"
#include "engine/runtime/nn/linear.h"
#include "tests/engine/runtime/nn/recording_boundary.h"

namespace {

using moonshard::Hookable;
using moonshard::Record;
using moonshard::RecordingStep;
using Seen = std::vector<RecordingStep::Seen>;
using torch::Tensor;

// y = 2 x, with a child and a parameter so that clone has something to copy.
struct TwiceImpl : torch::nn::Cloneable<TwiceImpl> {
  TwiceImpl() { reset(); }
  void reset() override {
    inner = register_module("inner", moonshard::nn::Linear(2, 2));
    scale = register_parameter("scale", torch::full({1}, 2.0));
  }
  Tensor forward(const Tensor& x) { return x * scale; }
  moonshard::nn::Linear inner = nullptr;
  Tensor scale;
};
MOONSHARD_MODULE(Twice);

struct DefaultsImpl : torch::nn::Module {
  Tensor forward(Tensor x, std::optional<Tensor> mask = std::nullopt, double scale = 3.0) {
    return (mask ? x + *mask : x) * scale;
  }

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<Tensor>())}, {2, torch::nn::AnyValue(3.0)})
};
MOONSHARD_MODULE(Defaults);

struct NestedImpl : torch::nn::Module {
  struct Output {
    Tensor first, second;
    template <class Visitor>
    void VisitTensors(Visitor&& visit) {
      visit(first);
      visit(second);
    }
  };
  Output forward(const std::vector<Tensor>& many, std::optional<std::pair<Tensor, int>> pair,
                 const std::map<std::string, Tensor>& named, const Tensor& last) {
    Tensor sum = last;
    for (const Tensor& one : many) sum = sum + one;
    if (pair) sum = sum + pair->first * pair->second;
    for (const auto& [name, tensor] : named) sum = sum + tensor;
    return {sum, last};
  }
};
MOONSHARD_MODULE(Nested);

struct TupleImpl : torch::nn::Module {
  std::tuple<Tensor, int, std::vector<Tensor>> forward(Tensor x) { return {x + 1, 7, {x + 2, x + 3}}; }
};
MOONSHARD_MODULE(Tuple);

struct Counter {
  Counter() = default;
  Counter(const Counter&) = delete;
  int value = 0;
};
struct OddArgumentsImpl : torch::nn::Module {
  int forward(std::unique_ptr<int> owned, Counter& counter, const Counter& same, Tensor&& x) {
    counter.value += *owned;
    moved_in = std::move(x);
    return same.value;
  }
  Tensor moved_in;
};
MOONSHARD_MODULE(OddArguments);

struct ConstImpl : torch::nn::Module {
  Tensor forward(const Tensor& x, int times = 5) const { return x * times; }
};
MOONSHARD_MODULE(Const);

struct VoidImpl : torch::nn::Module {
  void forward(const Tensor& x) { seen = x; }
  Tensor seen;
};
MOONSHARD_MODULE(Void);

struct NoArgumentsImpl : torch::nn::Module {
  Tensor forward() { return torch::ones({2}); }
};
MOONSHARD_MODULE(NoArguments);

struct ThrowingImpl : torch::nn::Module {
  Tensor forward(const Tensor&) { throw std::runtime_error("inside forward"); }
};
MOONSHARD_MODULE(Throwing);

struct AskedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return x; }
  bool HoldBack(std::string_view parameter) { return parameter == "bias"; }
  bool SetLocalRows(int64_t first, int64_t rows, int64_t total) { return first + rows == total; }
};
MOONSHARD_MODULE(Asked);

Tensor Ones() { return torch::ones({2}); }
double First(const Tensor& tensor) { return tensor.flatten()[0].item<double>(); }

}  // namespace

TEST_CASE("every form of call goes through the hook and gives the same") {
  Twice twice;
  auto plan = Record(*twice);
  plan->on_argument[0] = [](const Tensor& x) { return x + 1; };
  plan->on_result[0] = [](const Tensor& y) { return y * 10; };
  const double expected = (1 + 1) * 2 * 10;

  SECTION("holder call") { CHECK(First(twice(Ones())) == expected); }
  SECTION("arrow") { CHECK(First(twice->forward(Ones())) == expected); }
  SECTION("lvalue argument, whose caller keeps what it had") {
    Tensor x = Ones();
    CHECK(First(twice(x)) == expected);
    CHECK(First(x) == 1);
  }
  SECTION("shared_ptr of the hooked class") {
    const std::shared_ptr<Twice::Impl>& pointer = twice.ptr();
    CHECK(First(pointer->forward(Ones())) == expected);
  }
  SECTION("Sequential") {
    torch::nn::Sequential chain(twice, Twice());
    CHECK(First(chain->forward(Ones())) == expected * 2);
  }
  SECTION("AnyModule") {
    torch::nn::AnyModule any(twice);
    CHECK(First(any.forward(Ones())) == expected);
    CHECK(First(any.get<Twice>()(Ones())) == expected);
    CHECK(plan->entered == 2);
    return;
  }
  CHECK(plan->entered == 1);
  CHECK(plan->left == 1);
  CHECK(plan->destroyed == 1);
  CHECK(plan->right_call);
  CHECK(twice->calls() == 1);
}

TEST_CASE("without a plan nothing is counted, and taking it away restores the plain call") {
  Twice twice;
  CHECK(First(twice(Ones())) == 2);
  auto plan = Record(*twice);
  plan->on_result[0] = [](const Tensor& y) { return y * 10; };
  twice->SetBoundary(nullptr);
  CHECK(First(twice(Ones())) == 2);
  CHECK(twice->calls() == 0);
  CHECK(plan->entered == 0);
}

TEST_CASE("calls that go around the hook leave the count at zero") {
  Twice twice;
  auto plan = Record(*twice);
  plan->on_result[0] = [](const Tensor& y) { return y * 10; };
  CHECK(First(twice->as<TwiceImpl>()->TwiceImpl::forward(Ones())) == 2);
  std::shared_ptr<TwiceImpl> as_base = twice.ptr();
  CHECK(First(as_base->forward(Ones())) == 2);
  CHECK(twice->calls() == 0);
}

TEST_CASE("default arguments work in every form") {
  Defaults defaults;
  auto plan = Record(*defaults);
  plan->on_argument[0] = [](const Tensor& x) { return x + 1; };
  CHECK(First(defaults(Ones())) == 6);
  CHECK(plan->arguments == Seen{{0, true}});
  CHECK(First(defaults->forward(Ones(), torch::ones({2}))) == 9);
  CHECK(plan->arguments == Seen{{0, true}, {1, true}});
  CHECK(First(defaults(Ones(), std::nullopt, 1.0)) == 2);
  torch::nn::AnyModule any(defaults);
  CHECK(First(any.forward(Ones())) == 6);
  CHECK(plan->entered == 4);
  defaults->SetBoundary(nullptr);
  CHECK(First(defaults(Ones())) == 3);
}

TEST_CASE("positions are those of the signature, whatever is absent or nested") {
  Nested nested;
  auto plan = Record(*nested);
  plan->on_argument[3] = [](const Tensor& x) { return x * 100; };
  const std::vector<Tensor> many{Ones(), Tensor(), Ones()};
  const std::vector<Tensor> two{Ones(), Ones()};
  NestedImpl::Output output = nested(two, std::nullopt, std::map<std::string, Tensor>{{"a", Ones()}}, Ones());
  CHECK(plan->arguments == Seen{{0, true}, {0, true}, {2, true}, {3, true}});
  CHECK(plan->results == Seen{{0, true}, {1, true}});
  CHECK(First(output.first) == 103);
  CHECK(First(output.second) == 100);
  nested(two, std::make_pair(Ones(), 4), std::map<std::string, Tensor>{}, Ones());
  CHECK(plan->arguments == Seen{{0, true}, {0, true}, {1, true}, {3, true}});
  CHECK_THROWS(nested(many, std::nullopt, std::map<std::string, Tensor>{}, Ones()));
  CHECK(plan->arguments == Seen{{0, true}, {0, false}, {0, true}, {3, true}});
}

TEST_CASE("results of a tuple are numbered by their place") {
  Tuple tuple;
  auto plan = Record(*tuple);
  plan->on_result[2] = [](const Tensor& y) { return y * 10; };
  auto [first, number, rest] = tuple(Ones());
  CHECK(plan->results == Seen{{0, true}, {2, true}, {2, true}});
  CHECK(First(first) == 2);
  CHECK(number == 7);
  CHECK(First(rest[1]) == 40);
}

TEST_CASE("arguments that hold no tensor pass as they are") {
  OddArguments odd;
  auto plan = Record(*odd);
  Counter counter;
  Counter same;
  same.value = 42;
  CHECK(odd->forward(std::make_unique<int>(5), counter, same, Ones()) == 42);
  CHECK(counter.value == 5);
  CHECK(plan->arguments == Seen{{3, true}});
  CHECK(plan->results.empty());
  CHECK(First(odd->moved_in) == 1);
}

TEST_CASE("const forward, no result, no argument") {
  Const constant;
  auto plan = Record(*constant);
  const Const& view = constant;
  CHECK(First(view->forward(Ones(), 2)) == 2);
  CHECK(First(view->forward(Ones())) == 5);
  CHECK(First(torch::nn::AnyModule(constant).forward(Ones(), 4)) == 4);
  CHECK(plan->entered == 3);

  Void nothing;
  plan = Record(*nothing);
  nothing(Ones());
  CHECK(First(nothing->seen) == 1);
  CHECK((plan->entered == 1 && plan->left == 1));

  NoArguments empty;
  plan = Record(*empty);
  CHECK(First(empty()) == 1);
  CHECK((plan->arguments.empty() && plan->results == Seen{{0, true}}));
}

TEST_CASE("an exception in forward ends the call") {
  Throwing throwing;
  auto plan = Record(*throwing);
  CHECK_THROWS_WITH(throwing(Ones()), "inside forward");
  CHECK(plan->entered == 1);
  CHECK(plan->left == 0);
  CHECK(plan->destroyed == 1);
}

TEST_CASE("an exception says in whose call it was thrown, once, and stays what it is") {
  struct RaisingImpl : torch::nn::Module {
    Tensor forward(const Tensor& x) {
      if (kind == 0) throw std::out_of_range("far");
      if (kind == 1) TORCH_CHECK_INDEX(false, "far");
      if (kind == 2) throw std::bad_alloc();
      return x;
    }
    int kind = 0;
  };
  struct AroundImpl : torch::nn::Module {
    Tensor forward(const Tensor& x) { return (*inner)(x); }
    torch::nn::ModuleHolder<moonshard::nn::Hooked<RaisingImpl>>* inner = nullptr;
  };
  torch::nn::ModuleHolder<moonshard::nn::Hooked<RaisingImpl>> raising{
      std::make_shared<moonshard::nn::Hooked<RaisingImpl>>()};
  torch::nn::ModuleHolder<moonshard::nn::Hooked<AroundImpl>> around{
      std::make_shared<moonshard::nn::Hooked<AroundImpl>>()};
  around->inner = &raising;
  Record(*raising, "'a.b' (p.lua:3)");
  Record(*around, "'a' (p.lua:2)");
  CHECK_THROWS_AS(around(Ones()), std::out_of_range);
  CHECK_THROWS_WITH(around(Ones()), "far\nin the call of 'a.b' (p.lua:3)");
  raising->kind = 1;
  CHECK_THROWS_AS(around(Ones()), c10::IndexError);
  CHECK_THROWS_WITH(around(Ones()), Catch::Contains("far") && Catch::Contains("in the call of 'a.b' (p.lua:3)") &&
                                        !Catch::Contains("in the call of 'a' "));
  raising->kind = 2;
  CHECK_THROWS_AS(around(Ones()), std::bad_alloc);
  raising->kind = 3;
  CHECK_NOTHROW(around(Ones()));
}

TEST_CASE("an argument by value is the only owner while forward runs") {
  struct OwnerImpl : torch::nn::Module {
    Tensor forward(Tensor x) {
      owners = x.use_count();
      return x;
    }
    size_t owners = 0;
  };
  torch::nn::ModuleHolder<moonshard::nn::Hooked<OwnerImpl>> owner{std::make_shared<moonshard::nn::Hooked<OwnerImpl>>()};
  auto plan = Record(*owner);
  plan->on_argument[0] = [](const Tensor& x) { return x + 1; };
  owner(Ones());
  CHECK(owner->owners == 1);
}

TEST_CASE("a clone is deep, hooked, and has no plan") {
  Twice twice;
  auto copy = std::dynamic_pointer_cast<Twice::Impl>(twice->clone());
  REQUIRE(copy != nullptr);
  CHECK(dynamic_cast<Hookable*>(copy->inner.get()) != nullptr);
  CHECK(copy->boundary() == nullptr);
  CHECK_FALSE(copy->scale.is_same(twice->scale));
  CHECK_FALSE(copy->inner->weight.is_same(twice->inner->weight));
  CHECK(torch::equal(copy->inner->weight, twice->inner->weight));
  CHECK(copy->inner->weight.is_same(copy->named_parameters()["inner.weight"]));
  CHECK(copy->scale.is_same(copy->named_parameters()["scale"]));
  auto plan = Record(*copy);
  copy->forward(Ones());
  CHECK(plan->entered == 1);

  Record(*twice->inner);
  CHECK_THROWS_AS(twice->clone(), moonshard::PlanError);
}

TEST_CASE("questions reach the Impl that answers them") {
  Asked asked;
  Hookable& face = *asked;
  CHECK(face.HoldBack("bias"));
  CHECK_FALSE(face.HoldBack("weight"));
  CHECK(face.SetLocalRows(3, 4, 7));
  CHECK_FALSE(face.SetLocalRows(3, 4, 8));
  Twice twice;
  CHECK_FALSE(static_cast<Hookable&>(*twice).HoldBack("bias"));
  CHECK_FALSE(static_cast<Hookable&>(*twice).SetLocalRows(0, 1, 1));
}

TEST_CASE("the kind of a module is its class without hook, namespace and Impl") {
  CHECK(moonshard::nn::KindOf(*Twice()) == "Twice");
  CHECK(moonshard::nn::KindOf(*moonshard::nn::Linear(1, 1)) == "Linear");
  CHECK(moonshard::nn::KindOf(*torch::nn::Linear(1, 1)) == "Linear");
  CHECK(moonshard::nn::KindOf(*Nested()) == "Nested");
  CHECK(moonshard::nn::detail::KindFromClassName("a::BoxImpl<int, a::B>") == "Box<int, a::B>");
  CHECK(moonshard::nn::detail::KindFromClassName("Impl") == "Impl");
}
