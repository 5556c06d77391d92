#include "comm/quantized_communicator.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "comm/slow_link_oracle.h"
#include "comm/thread_ranks.h"
#include "core/error.h"
#include "core/host_device.h"
#include "core/parallel.h"
#include "cpu_adam/cpu_shard_math.h"
#include "support/guarded_array.h"
#include "support/run_ranks.h"
#include "support/test_seed.h"
#include "support/watchdog.h"

namespace strata::comm {
namespace {

using test::Code;
using test::Elements;
using test::GuardedArray;
using test::same_elements;
using test::Tensor;
using test::text_of;

constexpr DType kTypes[] = {DType::F32, DType::BF16, DType::F16};

// One rank with its stream and a scratch of exactly what is needed.
struct Rank {
  Rank(Communicator& base_communicator, const QuantizedOptions& options, ShardMath& math)
      : base(base_communicator),
        scratch(DType::U8, quantized_scratch_bytes(base.world(), options), 0),
        device(1 << 20, {.mode = HostDeviceOptions::Mode::Adversarial, .seed = base.rank()}),
        comm(base, options, math, {scratch.span().data, scratch.span().bytes()}),
        stream(device.create_stream("comm")) {}
  ~Rank() { EXPECT_TRUE(scratch.guards_intact()); }
  void wait() { stream->record().wait(); }

  Communicator& base;
  GuardedArray scratch;
  HostDevice device;
  QuantizedCommunicator comm;
  std::unique_ptr<Stream> stream;
};

void with_ranks(std::size_t world, const QuantizedOptions& options, const std::function<void(Rank&)>& fn) {
  const test::Watchdog watchdog("quantized collectives");
  test::PlainMath math;
  const auto ranks = make_thread_ranks(world, math);
  test::run_ranks(world, [&](std::size_t r) {
    Rank rank(*ranks[r], options, math);
    fn(rank);
  });
}

// Rows with no, few and a block's number of elements, and with several chunks of which the last is short.
constexpr std::size_t kSmallRows[] = {0, 1, 7, 255, 256, 257, 1000};
constexpr std::size_t kLargeRow = kQuantizedChunk + 301;

void check_all_gather(Rank& rank, const Code& code, DType dtype, std::size_t row, std::uint64_t seed) {
  const std::size_t world = rank.comm.world();
  SCOPED_TRACE(std::to_string(world) + " ranks, " + std::string(name_of(dtype)) + " x " + std::to_string(row) + " " +
               text_of(code) + ", seed " + std::to_string(seed));
  Tensor full(dtype, test::brought(seed, rank.comm.rank(), dtype, world, row));

  rank.comm.all_gather(*rank.stream, full.span());
  rank.wait();

  for (std::size_t r = 0; r < world; ++r) {
    const Elements mine = test::brought_row(seed, r, r, dtype, row);
    const Elements expected = world == 1 ? mine : test::rounded(test::coded(mine, code), dtype);
    ASSERT_TRUE(same_elements(test::row_of(full.elements(), world, r), expected)) << "row " << r;
  }
}

void check_reduce_scatter(Rank& rank, const Code& code, DType dtype, std::size_t row, std::uint64_t seed) {
  const std::size_t world = rank.comm.world(), r = rank.comm.rank();
  SCOPED_TRACE(std::to_string(world) + " ranks, " + std::string(name_of(dtype)) + " x " + std::to_string(row) + " " +
               text_of(code) + ", seed " + std::to_string(seed));
  Tensor full(dtype, test::brought(seed, r, dtype, world, row));

  rank.comm.reduce_scatter(*rank.stream, full.span());
  rank.wait();

  std::vector<Elements> parts;
  for (std::size_t k = 0; k < world; ++k) {
    parts.push_back(test::brought_row(seed, k, r, dtype, row));
  }
  ASSERT_TRUE(same_elements(test::row_of(full.elements(), world, r), test::summed(parts, code, dtype)));
}

TEST(QuantizedCommunicator, GatheredWeightsAreTheCodedRowsOnEveryRank) {
  for (const std::size_t world : {1u, 2u, 3u, 4u}) {
    for (const Code& code : {Code(), Code(BlockCode::Int8), Code(BlockCode::Int4)}) {
      with_ranks(world, {.weights = code}, [&](Rank& rank) {
        for (const DType dtype : kTypes) {
          for (const std::size_t row : kSmallRows) check_all_gather(rank, code, dtype, row, 61);
        }
        if (world == 3) check_all_gather(rank, code, DType::BF16, kLargeRow, 61);
      });
    }
  }
}

TEST(QuantizedCommunicator, ReducedGradientsAreSumsOfCodedPartsInRankOrder) {
  for (const std::size_t world : {1u, 2u, 3u, 4u}) {
    for (const Code& code : {Code(), Code(BlockCode::Int8), Code(BlockCode::Int4)}) {
      with_ranks(world, {.gradients = code}, [&](Rank& rank) {
        for (const DType dtype : kTypes) {
          for (const std::size_t row : kSmallRows) check_reduce_scatter(rank, code, dtype, row, 62);
        }
        if (world == 3) check_reduce_scatter(rank, code, DType::BF16, kLargeRow, 62);
      });
    }
  }
}

TEST(QuantizedCommunicator, RandomCollectivesInARowFollowTheOracle) {
  const std::uint64_t seed = test::test_seed(63);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 10; ++round) {
    const Code codes[] = {Code(), Code(BlockCode::Int8), Code(BlockCode::Int4)};
    const QuantizedOptions options{.weights = codes[random() % 3], .gradients = codes[random() % 3]};
    const std::uint64_t round_seed = random();
    with_ranks(1 + random() % 4, options, [&](Rank& rank) {
      std::mt19937_64 same_on_all(round_seed);
      for (int i = 0; i < 20; ++i) {
        const DType dtype = kTypes[same_on_all() % 3];
        const std::size_t row = same_on_all() % 3000;
        same_on_all() % 2 == 0 ? check_all_gather(rank, options.weights, dtype, row, round_seed + 1)
                               : check_reduce_scatter(rank, options.gradients, dtype, row, round_seed + 2);
      }
    });
  }
}

TEST(QuantizedCommunicator, AnElementIsOffByAtMostTheCodesShareOfItsBlocksLargestMagnitude) {
  constexpr std::size_t kWorld = 3, kRow = 5000;
  for (const BlockCode code : {BlockCode::Int8, BlockCode::Int4}) {
    const double share = code == BlockCode::Int8 ? 1.0 / 254 : 1.0 / 14;
    with_ranks(kWorld, {.weights = code, .gradients = code}, [&](Rank& rank) {
      const auto part = [&](std::size_t r, std::size_t row) { return test::brought_row(64, r, row, DType::F32, kRow); };
      const auto largest_around = [](const Elements& row, std::size_t i) {
        double largest = 0;
        for (std::size_t k = i / kScaleBlock * kScaleBlock;
             k < std::min(row.size(), (i / kScaleBlock + 1) * kScaleBlock); ++k) {
          largest = std::max(largest, std::abs(static_cast<double>(row[k])));
        }
        return largest;
      };
      constexpr double kRoundings = 1 + 1e-4;
      Tensor weights(DType::F32, test::brought(64, rank.comm.rank(), DType::F32, kWorld, kRow));
      Tensor grads = weights;

      rank.comm.all_gather(*rank.stream, weights.span());
      rank.comm.reduce_scatter(*rank.stream, grads.span());
      rank.wait();

      for (std::size_t r = 0; r < kWorld; ++r) {
        const Elements sent = part(r, r), got = test::row_of(weights.elements(), kWorld, r);
        for (std::size_t i = 0; i < kRow; ++i) {
          const double off = std::abs(static_cast<double>(got[i]) - static_cast<double>(sent[i]));
          ASSERT_LE(off, largest_around(sent, i) * share * kRoundings);
        }
      }
      const std::size_t mine = rank.comm.rank();
      const Elements sum = test::row_of(grads.elements(), kWorld, mine);
      for (std::size_t i = 0; i < kRow; i += 97) {
        double exact = 0, bound = 0;
        for (std::size_t r = 0; r < kWorld; ++r) {
          const Elements contribution = part(r, mine);
          exact += static_cast<double>(contribution[i]);
          bound += largest_around(contribution, i) * share * kRoundings;
        }
        ASSERT_LE(std::abs(static_cast<double>(sum[i]) - exact), bound);
      }
    });
  }
}

TEST(QuantizedCommunicator, SendsWhatTheFormulaSays) {
  for (const std::size_t world : {1u, 2u, 3u, 4u}) {
    for (const BlockCode code : {BlockCode::Int8, BlockCode::Int4}) {
      for (const std::size_t row : {std::size_t{0}, std::size_t{1}, std::size_t{257}, kLargeRow}) {
        with_ranks(world, {.weights = code, .gradients = code}, [&](Rank& rank) {
          Tensor full(DType::BF16, Elements(row * world));

          rank.comm.all_gather(*rank.stream, full.span());
          rank.wait();
          EXPECT_EQ(rank.comm.stats().bytes_sent, (world - 1) * message_bytes(code, row)) << row;

          rank.comm.reduce_scatter(*rank.stream, full.span());
          rank.wait();
          EXPECT_EQ(rank.comm.stats().bytes_sent, 2 * (world - 1) * message_bytes(code, row)) << row;
          EXPECT_EQ(rank.comm.stats().control_bytes, 0u);
        });
      }
    }
  }
}

// Of ZeRO++: weights in half of fp16's volume, gradients in a quarter. Scales are the rest: 4 bytes for 256 elements.
TEST(QuantizedCommunicator, VolumesAreThoseOfThePaperPlusTheScales) {
  constexpr std::size_t kRow = 100 * kScaleBlock;
  with_ranks(2, {.weights = BlockCode::Int8, .gradients = BlockCode::Int4}, [&](Rank& rank) {
    Tensor full(DType::BF16, Elements(2 * kRow));
    const std::uint64_t plain = kRow * 2, scales = kRow / 256 * 4;

    rank.comm.all_gather(*rank.stream, full.span());
    rank.wait();
    const std::uint64_t gathered = rank.comm.stats().bytes_sent;
    rank.comm.reduce_scatter(*rank.stream, full.span());
    rank.wait();
    const std::uint64_t reduced = rank.comm.stats().bytes_sent - gathered;

    EXPECT_EQ(gathered, plain / 2 + scales);
    EXPECT_EQ(reduced, plain / 4 + scales);
  });
}

TEST(QuantizedCommunicator, AnOverflowOnOneRankReachesTheSumAndStaysInItsBlock) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr std::size_t kRow = 1000;
  for (const BlockCode code : {BlockCode::Int8, BlockCode::Int4}) {
    for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      for (const DType dtype : kTypes) {
        with_ranks(3, {.gradients = code}, [&](Rank& rank) {
          Elements elements(3 * kRow, 1.0f);
          if (rank.comm.rank() == 2) elements[1 * kRow + 300] = bad;  // for rank 1, in its second block
          Tensor full(dtype, elements);

          rank.comm.reduce_scatter(*rank.stream, full.span());
          rank.wait();

          const Elements sum = test::row_of(full.elements(), 3, rank.comm.rank());
          for (std::size_t i = 0; i < kRow; ++i) {
            const bool is_lost = rank.comm.rank() == 1 && i / kScaleBlock == 1;
            ASSERT_TRUE(is_lost ? std::isnan(sum[i]) : sum[i] == 3.0f) << i << ": " << sum[i];
          }
        });
      }
    }
  }
}

TEST(QuantizedCommunicator, PassesOnWhatIsNoWeightOrGradient) {
  with_ranks(2, {.weights = BlockCode::Int8, .gradients = BlockCode::Int8}, [&](Rank& rank) {
    const std::size_t r = rank.comm.rank();
    std::vector<std::uint8_t> bytes = {static_cast<std::uint8_t>(10 + r), static_cast<std::uint8_t>(20 + r)};
    Tensor swapped(DType::F32, {1.001f + static_cast<float>(r), 2000.0f + static_cast<float>(r)});
    double values[] = {r == 0 ? 0.1 : 0.0, r == 1 ? 0.3 : 0.0};

    rank.comm.all_gather(*rank.stream, {reinterpret_cast<std::byte*>(bytes.data()), DType::U8, 2});
    rank.comm.all_to_all(*rank.stream, swapped.span());
    rank.comm.all_reduce_sum(values);
    rank.comm.barrier();
    rank.wait();

    EXPECT_EQ(bytes, (std::vector<std::uint8_t>{10, 21}));
    EXPECT_EQ(swapped.elements(), r == 0 ? (Elements{1.001f, 2.001f}) : (Elements{2000.0f, 2001.0f}));
    EXPECT_EQ(values[0], 0.1);
    EXPECT_EQ(values[1], 0.3);
  });
}

TEST(QuantizedCommunicator, TheProcessorsVectorsGiveTheSameBits) {
  constexpr std::size_t kWorld = 3;
  const test::Watchdog watchdog("quantized collectives in vectors");
  for (const BlockCode code : {BlockCode::Int8, BlockCode::Int4}) {
    test::PlainMath plain;
    const auto ranks = make_thread_ranks(kWorld, plain);
    test::run_ranks(kWorld, [&](std::size_t r) {
      const auto parallel = make_thread_pool(2);
      cpu_adam::CpuShardMath math(*parallel);
      Rank rank(*ranks[r], {.weights = code, .gradients = code}, math);
      for (const std::size_t row : {std::size_t{1000}, std::size_t{70007}}) {
        check_all_gather(rank, code, DType::BF16, row, 65);
        check_reduce_scatter(rank, code, DType::BF16, row, 66);
      }
    });
  }
}

TEST(QuantizedCommunicator, ScratchIsAConstantAndLessIsRefused) {
  const QuantizedOptions none, weights{.weights = BlockCode::Int8}, both{BlockCode::Int8, BlockCode::Int4};
  EXPECT_EQ(quantized_scratch_bytes(4, none), 0u);
  EXPECT_EQ(quantized_scratch_bytes(1, both), 0u);
  EXPECT_EQ(quantized_scratch_bytes(4, weights), 4 * (kQuantizedChunk + kQuantizedChunk / 64));
  EXPECT_EQ(quantized_scratch_bytes(4, both), 4 * (kQuantizedChunk + kQuantizedChunk / 64) + 4 * kQuantizedChunk);
  test::PlainMath math;
  const auto ranks = make_thread_ranks(2, math);
  std::vector<std::byte> scratch(quantized_scratch_bytes(2, both) - 1);

  EXPECT_THROW(QuantizedCommunicator(*ranks[0], both, math, scratch), ContractViolation);
  EXPECT_THROW(QuantizedCommunicator(*ranks[0], both, math, {}), ContractViolation);
}

TEST(QuantizedCommunicator, AnAbortEndsACollectiveThatWaits) {
  const test::Watchdog watchdog("an aborted quantized gather");
  test::PlainMath math;
  const auto ranks = make_thread_ranks(2, math);  // rank 1 never comes
  Rank rank(*ranks[0], {.weights = BlockCode::Int8}, math);
  Tensor full(DType::BF16, Elements(2000, 1.0f));
  rank.comm.all_gather(*rank.stream, full.span());

  rank.comm.abort(std::make_exception_ptr(CommError("rank 1 is lost")));

  EXPECT_THROW(rank.wait(), CommError);
}

}  // namespace
}  // namespace strata::comm
