// Stages 0 to 3 over ranks that are threads: what is learnt does not depend on the stage or on where anything lives.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "comm/thread_ranks.h"
#include "support/toy_engine.h"

namespace strata::zero {
namespace {

using offload::TierKind;
using test::Bytes;
using test::ToyEngine;
using test::ToyOptions;
using Order = GradReducer::Options::Order;

// Sanitizers take ten times as long and look for other things: there each kind of case runs once.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// What a rank ends with: its updated rows, by name, and what it sent.
struct RankResult {
  std::map<std::string, Bytes> snapshot;
  std::vector<std::uint64_t> rows;  // per group, elements of a row
  double loss = 0;
  CommStats sent;
  std::vector<Bytes> bound;  // per group, the whole parameter as the next forward would see it
};

std::vector<RankResult> train(const ToyOptions& options, std::size_t world, int steps,
                              const std::function<void(ToyEngine&)>& after_each = {},
                              const std::vector<std::unique_ptr<Communicator>>* nodes = nullptr) {
  test::PlainMath math;
  const std::vector<std::unique_ptr<Communicator>> comms = comm::make_thread_ranks(world, math);
  std::vector<RankResult> results(world);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      ToyOptions mine = options;
      mine.comm = comms[r].get();
      mine.device.seed += r;
      if (nodes != nullptr) mine.node = (*nodes)[r].get();
      try {
        ToyEngine engine(mine);
        for (int step = 0; step < steps; ++step) {
          results[r].loss += engine.step().loss_sum;
          if (after_each) after_each(engine);
        }
        engine.settle();
        results[r].sent = engine.comm.stats();
        results[r].snapshot = engine.snapshot();
      } catch (...) {
        comms[r]->abort(std::current_exception());
        if (nodes != nullptr) (*nodes)[r]->abort(std::current_exception());
        ADD_FAILURE() << "rank " << r << " failed";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// The flat tensors of all ranks put together; those that are whole on every rank must be equal.
std::map<std::string, Bytes> assembled(const std::vector<RankResult>& ranks, int stage) {
  std::map<std::string, Bytes> all;
  for (const RankResult& rank : ranks) {
    for (const auto& [name, bytes] : rank.snapshot) {
      Bytes& whole = all[name];
      if (stage == 0 && !whole.empty()) {
        EXPECT_EQ(whole, bytes) << name << " differs between ranks";
      } else {
        whole.insert(whole.end(), bytes.begin(), bytes.end());
      }
    }
  }
  return all;
}

void expect_equal(const std::map<std::string, Bytes>& a, const std::map<std::string, Bytes>& b,
                  const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, bytes] : a) EXPECT_TRUE(bytes == b.at(name)) << what << ": " << name << " differs";
}

struct Case {
  int stage;
  TierKind param, grad, state;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const TierKind param : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
      if (stage < 3 && param == TierKind::Nvme) continue;
      for (const TierKind grad : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
        for (const TierKind state : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
          if (!kSanitized || (param == grad && state == TierKind::Nvme)) cases.push_back({stage, param, grad, state});
        }
      }
    }
  }
  return cases;
}

std::string text_of(const Case& c) {
  return "stage " + std::to_string(c.stage) + ", parameters on " + std::string(name_of(c.param)) + ", gradients on " +
         std::string(name_of(c.grad)) + ", states on " + std::string(name_of(c.state));
}

// Tables of two and a half rows for three ranks, of the blocks one row in part.
ToyOptions two_blocks() {
  return {.blocks = 2, .head = test::ToyCompute::Head::Own, .vocabulary = kSanitized ? 50U : 5000U};
}

class Stages : public ::testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Stages, ::testing::Values(2, 3),
                         [](const auto& ranks) { return std::to_string(ranks.param) + "Ranks"; });

// With one contribution per group all stages add in the same order.
TEST_P(Stages, AndHomesGiveTheSameBits) {
  ToyOptions options = two_blocks();
  options.dtype = DType::BF16;
  options.slot_bytes = 16 * kPageBytes;
  const std::map<std::string, Bytes> reference = assembled(train(options, GetParam(), 2), 3);
  for (const Case& c : all_cases()) {
    options.zero_stage = c.stage;
    options.param_home = c.param;
    options.grad_home = c.grad;
    options.state_home = c.state;
    expect_equal(reference, assembled(train(options, GetParam(), 2), c.stage), text_of(c));
  }
}

// With several contributions stages 0 and 1 add those of a rank first, 2 and 3 those of a micro-batch. Tied tables get
// contributions from two layers, and vertical accumulation sums on the device.
TEST_P(Stages, ThatAddInTheSameOrderGiveTheSameBits) {
  for (const auto accumulation : {Accumulation::Horizontal, Accumulation::Vertical}) {
    for (const auto head : {test::ToyCompute::Head::Own, test::ToyCompute::Head::Tied}) {
      if (kSanitized && (head == test::ToyCompute::Head::Own) == (accumulation == Accumulation::Horizontal)) continue;
      ToyOptions options = two_blocks();
      options.dtype = DType::BF16;
      options.slot_bytes = 16 * kPageBytes;
      options.micro_batches = 3;
      options.accumulation = accumulation;
      options.head = head;
      for (const int first_stage : {0, 2}) {
        std::map<std::string, Bytes> reference;
        for (const TierKind grad : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
          for (const int stage : {first_stage, first_stage + 1}) {
            if (kSanitized && grad == TierKind::Nvme) continue;
            options.zero_stage = stage;
            options.grad_home = grad;
            const std::map<std::string, Bytes> result = assembled(train(options, GetParam(), 2), stage);
            if (reference.empty()) reference = result;
            expect_equal(reference, result, text_of({stage, TierKind::Host, grad, TierKind::Host}));
          }
        }
      }
    }
  }
}

// Whether updates overlap with the next forward or with their own backward, evaluation in between or not, and however
// late the streams are.
TEST_P(Stages, AndUpdateTimesGiveTheSameBits) {
  for (int stage = 0; stage <= 3; ++stage) {
    ToyOptions options = two_blocks();
    options.slot_bytes = 64 * kPageBytes;
    options.zero_stage = stage;
    options.state_home = TierKind::Nvme;
    const std::map<std::string, Bytes> reference = assembled(train(options, GetParam(), 3), stage);
    for (const UpdateTime time : {UpdateTime::UnderForward, UpdateTime::DuringBackward}) {
      for (const TierKind param : {TierKind::Device, TierKind::Host}) {
        options.update_time = time;
        options.param_home = param;
        options.look_ahead_pages = 4;
        options.device.mode = HostDeviceOptions::Mode::Adversarial;
        const auto evaluate = [](ToyEngine& engine) { (void)engine.evaluate(); };
        expect_equal(reference, assembled(train(options, GetParam(), 3, evaluate), stage),
                     text_of({stage, param, TierKind::Host, TierKind::Nvme}));
      }
    }
  }
}

// The other groups learn in a step what they learn without frozen ones; these keep their bits, and what a rank keeps
// whole of them is gathered once for good.
TEST_P(Stages, FrozenGroupsLeaveTheOthersTheirBits) {
  ToyOptions options = two_blocks();
  options.slot_bytes = 64 * kPageBytes;
  const std::map<std::string, Bytes> before = assembled(train(options, GetParam(), 0), 3);
  const std::map<std::string, Bytes> all = assembled(train(options, GetParam(), 1), 3);
  for (const std::vector<std::size_t>& frozen : {std::vector<std::size_t>{0, 1}, {2}, {3}}) {
    options.frozen = frozen;
    std::map<std::string, Bytes> expected = all;
    for (const std::size_t group : frozen) {
      const std::string name = test::ToyCompute(2, DType::F32).layouts()[group].group().name;
      expected[name + "/param"] = before.at(name + "/param");
      expected.erase(name + "/exp_avg");
      expected.erase(name + "/exp_avg_sq");
    }
    for (int stage = 0; stage <= 3; ++stage) {
      for (const UpdateTime time : {UpdateTime::AfterBackward, UpdateTime::UnderForward, UpdateTime::DuringBackward}) {
        for (const TierKind home : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
          if (stage < 3 && home == TierKind::Nvme) continue;
          options.zero_stage = stage;
          options.update_time = time;
          options.param_home = options.state_home = home;
          const std::string what = text_of({stage, home, TierKind::Host, home}) + ", first frozen " +
                                   std::to_string(frozen.front()) + ", time " + std::to_string(static_cast<int>(time));
          expect_equal(expected, assembled(train(options, GetParam(), 1), stage), what);
        }
      }
      if (stage == 0 || stage == 3) continue;
      options.param_home = options.state_home = TierKind::Host;
      options.update_time = UpdateTime::UnderForward;
      train(options, GetParam(), 3, [&](ToyEngine& engine) {
        for (const std::size_t group : frozen) EXPECT_EQ(engine.groups[group].gathers(), 1U) << engine.steps;
      });
    }
  }
}

// The fixed order: as many global micro-batches give the same bits on any number of ranks.
TEST(RankIndependentSums, GiveTheSameBitsOnOneTwoThreeAndSixRanks) {
  ToyOptions options = two_blocks();
  options.slot_bytes = 16 * kPageBytes;
  options.micro_batches = 6;
  options.order = Order::ByMicroBatch;
  // Without the padding, which depends on the number of ranks.
  const auto parameters = [&options](const std::map<std::string, Bytes>& flat) {
    std::map<std::string, Bytes> result;
    const test::ToyCompute compute(options.blocks, options.dtype, 1, options.head, options.vocabulary);
    for (const FlatLayout& layout : compute.layouts()) {
      const std::size_t end = (layout.params().back().offset + layout.params().back().numel) * sizeof(float);
      for (const char* kind : {"/param", "/exp_avg", "/exp_avg_sq"}) {
        const Bytes& all = flat.at(layout.group().name + kind);
        result[layout.group().name + kind].assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(end));
      }
    }
    return result;
  };
  const std::map<std::string, Bytes> one = parameters(assembled(train(options, 1, 3), 3));
  for (const std::size_t world : {2, 3, 6}) {
    if (kSanitized && world != 3) continue;
    options.micro_batches = 6 / world;
    for (const int stage : {1, 2, 3}) {
      options.zero_stage = stage;
      expect_equal(one, parameters(assembled(train(options, world, 3), stage)),
                   std::to_string(world) + " ranks, stage " + std::to_string(stage));
    }
  }
}

// A second partition inside each node of two: forward gathers among all, backward inside the node.
TEST(NodePartition, GathersBackwardInsideTheNodeAndChangesNoBit) {
  test::PlainMath math;
  for (const TierKind home : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
    ToyOptions options = two_blocks();
    options.dtype = DType::BF16;
    options.slot_bytes = 64 * kPageBytes;
    options.param_home = home;
    options.update_time = UpdateTime::UnderForward;
    const std::vector<RankResult> flat = train(options, 4, 3);
    std::vector<std::unique_ptr<Communicator>> nodes = comm::make_thread_ranks(2, math);
    for (auto& rank : comm::make_thread_ranks(2, math)) nodes.push_back(std::move(rank));
    const auto count = [](ToyEngine& engine) {
      for (std::size_t g = 0; g < engine.groups.size(); ++g) {
        const bool block = g > 0 && g + 1 < engine.groups.size();
        EXPECT_EQ(engine.groups[g].gathers(), static_cast<std::uint64_t>(engine.steps));
        EXPECT_EQ(engine.groups[g].node_gathers(), block ? static_cast<std::uint64_t>(engine.steps) : 0U);
      }
    };
    const std::vector<RankResult> nested = train(options, 4, 3, count, &nodes);
    expect_equal(assembled(flat, 3), assembled(nested, 3), "nodes");
    EXPECT_LT(nested[0].sent.bytes_sent, flat[0].sent.bytes_sent);
  }
}

// What a step sends, in elements of the groups, padding included: docs/distributed.md.
struct Volume {
  double gathered = 0;  // parameters, in elements times bytes
  double reduced = 0;   // gradients
};

// k micro-batches of `layout`, which `visits` layers of a micro-batch need and `contributions` contribute to.
Volume expected(const ToyOptions& o, const FlatLayout& layout, double visits, double contributions) {
  const double param = static_cast<double>(layout.numel() * bytes_of(o.dtype));
  const double sum = static_cast<double>(layout.numel() * bytes_of(test::toy_grad_dtype(o.dtype, o.micro_batches)));
  const double k = static_cast<double>(o.micro_batches);
  const bool vertical = o.accumulation == Accumulation::Vertical && o.micro_batches > 1;
  Volume volume;
  if (o.zero_stage == 0) {
    // All-reduce: what stage 1 gathers afterwards as weights it gathers as gradients.
    volume.reduced = 2 * (contributions * k > 1 ? sum : param);
    return volume;
  }
  const double gathers = vertical ? visits : visits * k;
  volume.gathered = o.zero_stage == 3 ? gathers * param : param;
  if (o.zero_stage == 1) {
    volume.reduced = contributions * k > 1 ? sum : param;
  } else {
    volume.reduced = vertical ? contributions * sum : contributions * k * param;
  }
  return volume;
}

TEST(BytesSent, EqualTheFormulasOfTheStages) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const std::size_t world : {1, 2, 3, 4}) {
      for (const std::size_t micro_batches : {1, 3}) {
        if (kSanitized && (world != 2 || micro_batches == 1)) continue;
        for (const auto accumulation : {Accumulation::Horizontal, Accumulation::Vertical}) {
          ToyOptions options = two_blocks();
          options.dtype = DType::BF16;
          options.slot_bytes = 64 * kPageBytes;
          options.zero_stage = stage;
          options.micro_batches = micro_batches;
          options.accumulation = accumulation;
          options.update_time = UpdateTime::UnderForward;
          const int steps = 2;
          const std::vector<RankResult> ranks = train(options, world, steps);
          double bytes = 0;
          const test::ToyCompute compute(options.blocks, options.dtype, world, options.head, options.vocabulary);
          for (std::size_t g = 0; g < compute.layouts().size(); ++g) {
            // The table is needed by the embedding's forward alone, the last group by its one visit, blocks by two.
            const bool block = g > 0 && g + 1 < compute.layouts().size();
            const Volume volume = expected(options, compute.layouts()[g], block ? 2 : 1, 1);
            bytes += volume.gathered + volume.reduced;
          }
          const double n = static_cast<double>(world);
          for (const RankResult& rank : ranks) {
            EXPECT_EQ(static_cast<double>(rank.sent.bytes_sent), steps * bytes * (n - 1) / n)
                << "stage " << stage << ", " << world << " ranks, " << micro_batches << " micro-batches, "
                << (accumulation == Accumulation::Vertical ? "vertical" : "horizontal");
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace strata::zero
