#include "comm/hierarchical_communicator.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "comm/quantized_communicator.h"
#include "comm/slow_link_oracle.h"
#include "comm/thread_ranks.h"
#include "core/error.h"
#include "core/host_device.h"
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

struct Shape {
  std::size_t nodes, ranks_per_node;
  std::size_t world() const { return nodes * ranks_per_node; }
  std::string text() const { return std::to_string(nodes) + "x" + std::to_string(ranks_per_node); }
};
constexpr Shape kShapes[] = {{2, 2}, {1, 4}, {4, 1}, {2, 3}, {3, 2}, {1, 1}};

// Codes on the two kinds of links.
struct Codes {
  QuantizedOptions intra, inter;
};

// The communicators that join `shape`, one of each kind per rank.
struct Links {
  Links(Shape of, ShardMath& math) : shape(of), flat(make_thread_ranks(shape.world(), math)) {
    for (std::size_t node = 0; node < shape.nodes; ++node)
      intra.push_back(make_thread_ranks(shape.ranks_per_node, math));
    for (std::size_t l = 0; l < shape.ranks_per_node; ++l) inter.push_back(make_thread_ranks(shape.nodes, math));
  }

  using Ranks = std::vector<std::unique_ptr<Communicator>>;
  const Shape shape;
  Ranks flat;
  std::vector<Ranks> intra, inter;
};

// One rank with its stream and scratches of exactly what is needed.
struct Rank {
  Rank(Links& links, std::size_t index, const Codes& codes, ShardMath& math)
      : shape(links.shape),
        node(index / shape.ranks_per_node),
        l(index % shape.ranks_per_node),
        intra_scratch(DType::U8, quantized_scratch_bytes(shape.ranks_per_node, codes.intra), 0),
        inter_scratch(DType::U8, quantized_scratch_bytes(shape.nodes, codes.inter), 0),
        scratch(DType::U8, hierarchical_scratch_bytes(shape.nodes, shape.ranks_per_node), 0),
        device(1 << 20, {.mode = HostDeviceOptions::Mode::Adversarial, .seed = index}),
        intra(*links.intra[node][l], codes.intra, math, bytes_in(intra_scratch)),
        inter(*links.inter[l][node], codes.inter, math, bytes_in(inter_scratch)),
        comm(intra, inter, *links.flat[index], bytes_in(scratch)),
        stream(device.create_stream("comm")) {}
  ~Rank() { EXPECT_TRUE(intra_scratch.guards_intact() && inter_scratch.guards_intact() && scratch.guards_intact()); }
  void wait() { stream->record().wait(); }
  static std::span<std::byte> bytes_in(const GuardedArray& array) { return {array.span().data, array.span().bytes()}; }

  const Shape shape;
  const std::size_t node, l;
  GuardedArray intra_scratch, inter_scratch, scratch;
  HostDevice device;
  QuantizedCommunicator intra, inter;
  HierarchicalCommunicator comm;
  std::unique_ptr<Stream> stream;
};

void with_ranks(Shape shape, const Codes& codes, const std::function<void(Rank&)>& fn) {
  const test::Watchdog watchdog("hierarchical collectives of " + shape.text());
  test::PlainMath math;
  Links links(shape, math);
  test::run_ranks(shape.world(), [&](std::size_t r) {
    Rank rank(links, r, codes, math);
    fn(rank);
  });
}

// Rows with no, few and a block's number of elements, and in fp32 with two chunks of either kind, the second one short.
constexpr std::size_t kSmallRows[] = {0, 1, 7, 257, 1000};
constexpr std::size_t kLargeRow = kHopChunkBytes / sizeof(float) + 301;
static_assert(kLargeRow > kQuantizedChunk);

void check_all_gather(Rank& rank, const Codes& codes, DType dtype, std::size_t row, std::uint64_t seed) {
  const std::size_t world = rank.shape.world();
  SCOPED_TRACE(rank.shape.text() + ", " + std::string(name_of(dtype)) + " x " + std::to_string(row) + ", inter " +
               text_of(codes.inter.weights) + ", intra " + text_of(codes.intra.weights));
  Tensor full(dtype, test::brought(seed, rank.comm.rank(), dtype, world, row));

  rank.comm.all_gather(*rank.stream, full.span());
  rank.wait();

  for (std::size_t r = 0; r < world; ++r) {
    Elements expected = test::brought_row(seed, r, r, dtype, row);
    if (rank.shape.nodes > 1) expected = test::rounded(test::coded(expected, codes.inter.weights), dtype);
    if (rank.shape.ranks_per_node > 1) expected = test::rounded(test::coded(expected, codes.intra.weights), dtype);
    ASSERT_TRUE(same_elements(test::row_of(full.elements(), world, r), expected)) << "row " << r;
  }
}

void check_reduce_scatter(Rank& rank, const Codes& codes, DType dtype, std::size_t row, std::uint64_t seed) {
  const std::size_t world = rank.shape.world(), r = rank.comm.rank();
  SCOPED_TRACE(rank.shape.text() + ", " + std::string(name_of(dtype)) + " x " + std::to_string(row) + ", inter " +
               text_of(codes.inter.gradients) + ", intra " + text_of(codes.intra.gradients));
  Tensor full(dtype, test::brought(seed, r, dtype, world, row));

  rank.comm.reduce_scatter(*rank.stream, full.span());
  rank.wait();

  std::vector<Elements> of_nodes;
  for (std::size_t node = 0; node < rank.shape.nodes; ++node) {
    std::vector<Elements> parts;
    for (std::size_t l = 0; l < rank.shape.ranks_per_node; ++l) {
      const std::size_t peer = node * rank.shape.ranks_per_node + l;
      parts.push_back(test::brought_row(seed, peer, r, dtype, row));
    }
    of_nodes.push_back(test::summed(parts, codes.intra.gradients, dtype));
  }
  ASSERT_TRUE(
      same_elements(test::row_of(full.elements(), world, r), test::summed(of_nodes, codes.inter.gradients, dtype)));
}

TEST(HierarchicalCommunicator, GathersEveryRowInPlace) {
  for (const Shape& shape : kShapes) {
    with_ranks(shape, {}, [&](Rank& rank) {
      for (const DType dtype : kTypes) {
        for (const std::size_t row : kSmallRows) check_all_gather(rank, {}, dtype, row, 71);
      }
      if (shape.ranks_per_node == 3) check_all_gather(rank, {}, DType::F32, kLargeRow, 71);
    });
  }
}

TEST(HierarchicalCommunicator, SumsNodesInTheirOrderAndRoundsOncePerHop) {
  for (const Shape& shape : kShapes) {
    with_ranks(shape, {}, [&](Rank& rank) {
      for (const DType dtype : kTypes) {
        for (const std::size_t row : kSmallRows) check_reduce_scatter(rank, {}, dtype, row, 72);
      }
      if (shape.ranks_per_node == 3) check_reduce_scatter(rank, {}, DType::F32, kLargeRow, 72);
    });
  }
}

TEST(HierarchicalCommunicator, EitherLinkMayBeQuantizedForWeightsAndGradients) {
  const QuantizedOptions plain, coded{.weights = BlockCode::Int8, .gradients = BlockCode::Int4};
  for (const Codes& codes : {Codes{plain, coded}, Codes{coded, plain}, Codes{coded, coded}}) {
    for (const Shape& shape : kShapes) {
      with_ranks(shape, codes, [&](Rank& rank) {
        for (const DType dtype : kTypes) {
          for (const std::size_t row : kSmallRows) {
            check_all_gather(rank, codes, dtype, row, 73);
            check_reduce_scatter(rank, codes, dtype, row, 74);
          }
        }
        if (shape.ranks_per_node != 3 || !codes.intra.weights || !codes.inter.weights) return;
        check_all_gather(rank, codes, DType::F32, kLargeRow, 73);
        check_reduce_scatter(rank, codes, DType::F32, kLargeRow, 74);
      });
    }
  }
}

TEST(HierarchicalCommunicator, WeightsCodedOnBothHopsAreRoundedOnce) {
  const QuantizedOptions coded{.weights = BlockCode::Int8};
  constexpr std::size_t kRow = 3000;
  for (const DType dtype : kTypes) {
    with_ranks({2, 2}, {coded, coded}, [&](Rank& rank) {
      Tensor full(dtype, test::brought(75, rank.comm.rank(), dtype, 4, kRow));

      rank.comm.all_gather(*rank.stream, full.span());
      rank.wait();

      for (std::size_t r = 0; r < 4; ++r) {
        const Elements sent = test::brought_row(75, r, r, dtype, kRow);
        EXPECT_TRUE(same_elements(test::row_of(full.elements(), 4, r),
                                  test::rounded(test::coded(sent, BlockCode::Int8), dtype)));
      }
    });
  }
}

TEST(HierarchicalCommunicator, RandomCollectivesInARowFollowTheOracle) {
  const std::uint64_t seed = test::test_seed(76);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 10; ++round) {
    const Code all[] = {Code(), Code(BlockCode::Int8), Code(BlockCode::Int4)};
    const auto any = [&] { return QuantizedOptions{.weights = all[random() % 3], .gradients = all[random() % 3]}; };
    const Codes codes{any(), any()};
    const std::uint64_t round_seed = random();
    with_ranks({1 + random() % 3, 1 + random() % 3}, codes, [&](Rank& rank) {
      std::mt19937_64 same_on_all(round_seed);
      for (int i = 0; i < 10; ++i) {
        const DType dtype = kTypes[same_on_all() % 3];
        const std::size_t row = same_on_all() % 2000;
        same_on_all() % 2 == 0 ? check_all_gather(rank, codes, dtype, row, round_seed + 1)
                               : check_reduce_scatter(rank, codes, dtype, row, round_seed + 2);
      }
    });
  }
}

// F = N rows. Per rank (M-1)/N F between nodes and (L-1)/L F inside; together (N-1)/N F, as without hops.
TEST(HierarchicalCommunicator, EachLinkCarriesWhatTheFormulaSays) {
  for (const Shape& shape : kShapes) {
    for (const std::size_t row : {std::size_t{0}, std::size_t{1}, std::size_t{257}, std::size_t{20001}}) {
      with_ranks(shape, {}, [&](Rank& rank) {
        const std::uint64_t full_bytes = shape.world() * row * 2;
        Tensor full(DType::BF16, Elements(shape.world() * row));
        for (std::uint64_t done = 1; done <= 2; ++done) {
          done == 1 ? rank.comm.all_gather(*rank.stream, full.span())
                    : rank.comm.reduce_scatter(*rank.stream, full.span());
          rank.wait();
          EXPECT_EQ(rank.inter.stats().bytes_sent, done * full_bytes * (shape.nodes - 1) / shape.world());
          EXPECT_EQ(rank.intra.stats().bytes_sent,
                    done * full_bytes * (shape.ranks_per_node - 1) / shape.ranks_per_node);
          EXPECT_EQ(rank.comm.stats().bytes_sent, done * full_bytes * (shape.world() - 1) / shape.world());
        }
      });
    }
  }
}

// Between nodes int8 weights and int4 gradients, as in the paper: 1/2 and 1/4 of a 16-bit type's bytes, and the scales.
TEST(HierarchicalCommunicator, CodesBetweenNodesShrinkThatLinkOnly) {
  constexpr Shape kShape = {2, 3};
  constexpr std::size_t kRow = kHopChunkBytes / 2 + kScaleBlock;  // two chunks
  const Codes codes{{}, {.weights = BlockCode::Int8, .gradients = BlockCode::Int4}};
  with_ranks(kShape, codes, [&](Rank& rank) {
    const std::uint64_t plain = (kShape.nodes - 1) * kRow * 2, scales = (kShape.nodes - 1) * kRow / 256 * 4;
    const std::uint64_t inside = kShape.nodes * (kShape.ranks_per_node - 1) * kRow * 2;
    Tensor full(DType::BF16, Elements(kShape.world() * kRow));

    rank.comm.all_gather(*rank.stream, full.span());
    rank.wait();
    EXPECT_EQ(rank.inter.stats().bytes_sent, plain / 2 + scales);
    EXPECT_EQ(rank.intra.stats().bytes_sent, inside);

    rank.comm.reduce_scatter(*rank.stream, full.span());
    rank.wait();
    EXPECT_EQ(rank.inter.stats().bytes_sent, plain / 2 + plain / 4 + 2 * scales);
    EXPECT_EQ(rank.intra.stats().bytes_sent, 2 * inside);
  });
}

TEST(HierarchicalCommunicator, AnOverflowOnOneRankReachesItsOwner) {
  const QuantizedOptions coded{.gradients = BlockCode::Int4};
  with_ranks({2, 2}, {coded, coded}, [&](Rank& rank) {
    Elements elements(4 * 1000, 1.0f);
    if (rank.comm.rank() == 1) elements[2 * 1000 + 999] = std::numeric_limits<float>::infinity();  // for rank 2
    Tensor full(DType::BF16, elements);

    rank.comm.reduce_scatter(*rank.stream, full.span());
    rank.wait();

    const Elements sum = test::row_of(full.elements(), 4, rank.comm.rank());
    EXPECT_EQ(std::isnan(sum[999]), rank.comm.rank() == 2);
    EXPECT_EQ(sum[0], 4.0f);
  });
}

TEST(HierarchicalCommunicator, WhatBlocksAndAllToAllGoFlat) {
  with_ranks({2, 2}, {}, [&](Rank& rank) {
    const auto r = static_cast<float>(rank.comm.rank());
    Tensor swapped(DType::F32, {10 * r, 10 * r + 1, 10 * r + 2, 10 * r + 3});
    double sum = static_cast<double>(r);

    rank.comm.all_to_all(*rank.stream, swapped.span());
    rank.comm.all_reduce_sum({&sum, 1});
    rank.comm.barrier();
    rank.wait();

    EXPECT_EQ(swapped.elements(), (Elements{r, 10 + r, 20 + r, 30 + r}));
    EXPECT_EQ(sum, 6.0);
    EXPECT_EQ(rank.intra.stats().bytes_sent + rank.inter.stats().bytes_sent, 0u);
    EXPECT_EQ(rank.comm.stats().bytes_sent, 3 * sizeof(float));
    EXPECT_GT(rank.comm.stats().control_bytes, 0u);
  });
}

TEST(HierarchicalCommunicator, RefusesRanksThatDoNotFitAndTooLittleScratch) {
  test::PlainMath math;
  Links links({2, 2}, math);
  std::vector<std::byte> scratch(hierarchical_scratch_bytes(2, 2));
  EXPECT_EQ(scratch.size(), 2 * kHopChunkBytes);
  EXPECT_EQ(hierarchical_scratch_bytes(1, 8), 0u);
  EXPECT_EQ(hierarchical_scratch_bytes(8, 1), 0u);
  Communicator &intra = *links.intra[0][1], &inter = *links.inter[1][0];

  EXPECT_NO_THROW(HierarchicalCommunicator(intra, inter, *links.flat[1], scratch));
  EXPECT_THROW(HierarchicalCommunicator(intra, inter, *links.flat[2], scratch), ContractViolation);
  EXPECT_THROW(HierarchicalCommunicator(intra, *links.flat[0], *links.flat[1], scratch), ContractViolation);
  EXPECT_THROW(HierarchicalCommunicator(intra, inter, *links.flat[1], std::span(scratch).subspan(1)),
               ContractViolation);
}

TEST(HierarchicalCommunicator, AnAbortEndsEveryLink) {
  const test::Watchdog watchdog("aborted hierarchical collectives");
  test::PlainMath math;
  Links links({2, 2}, math);  // the other ranks never come
  Rank rank(links, 0, {}, math);
  Tensor full(DType::BF16, Elements(4000, 1.0f));
  rank.comm.all_gather(*rank.stream, full.span());

  rank.comm.abort(std::make_exception_ptr(CommError("rank 3 is lost")));

  EXPECT_THROW(rank.wait(), CommError);
  EXPECT_THROW(rank.comm.barrier(), CommError);
  EXPECT_THROW(rank.intra.barrier(), CommError);
  EXPECT_THROW(rank.inter.barrier(), CommError);
}

}  // namespace
}  // namespace strata::comm
