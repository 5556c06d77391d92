#include "data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "core/error.h"
#include "data/token_bytes.h"

namespace strata::data {
namespace {

using test::TemporaryTokenFile;
using ::testing::ElementsAre;
using Order = Sampler::Order;

// Sample i holds the two tokens {i, 1000}, so the first token of a row tells which sample it is.
std::vector<test::SampleBytes> numbered(std::uint32_t count) {
  std::vector<test::SampleBytes> samples;
  for (std::uint32_t i = 0; i < count; ++i) samples.push_back({{i, 1000}, {0, 1}});
  return samples;
}

std::vector<std::int64_t> ids_of(const Batch& batch) {
  std::vector<std::int64_t> ids;
  for (std::int64_t row = 0; row < batch.sequences; ++row) {
    ids.push_back(batch.tokens[static_cast<std::size_t>(row * batch.tokens_each)]);
  }
  return ids;
}

std::vector<std::int64_t> ids_of_epoch(Sampler& sampler) {
  std::vector<std::int64_t> ids;
  for (std::uint64_t i = 0; i < sampler.batches_per_epoch(); ++i) {
    for (const std::int64_t id : ids_of(sampler.next())) ids.push_back(id);
  }
  return ids;
}

class NumberedSamples : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kCount = 101;
  TemporaryTokenFile path_{numbered(kCount)};
  TokenFile file_ = TokenFile::open(path_.path());
};

TEST(Sampler, LabelsAreTheNextTokensThatAreTrained) {
  const TemporaryTokenFile path(std::vector<test::SampleBytes>{{{5, 6, 7, 8}, {0, 1, 0, 1}}});
  const TokenFile file = TokenFile::open(path.path());
  Sampler sampler(file, 1, 16, 0, Order::Sequential);

  const Batch batch = sampler.next();

  EXPECT_EQ(batch.sequences, 1);
  EXPECT_EQ(batch.tokens_each, 4);
  EXPECT_THAT(batch.tokens, ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(batch.labels, ElementsAre(6, -100, 8, -100));
  EXPECT_EQ(batch.target_tokens, 2);
}

TEST(Sampler, ShorterSamplesArePaddedOnTheRightWithoutTargets) {
  const TemporaryTokenFile path(std::vector<test::SampleBytes>{{{5, 6}, {0, 1}}, {{7, 8, 9}, {0, 1, 1}}});
  const TokenFile file = TokenFile::open(path.path());
  Sampler sampler(file, 2, 16, 0, Order::Sequential);

  const Batch batch = sampler.next();

  EXPECT_EQ(batch.tokens_each, 3);
  EXPECT_THAT(batch.tokens, ElementsAre(5, 6, 0, 7, 8, 9));
  EXPECT_THAT(batch.labels, ElementsAre(6, -100, -100, 8, 9, -100));
  EXPECT_EQ(batch.target_tokens, 3);
}

TEST(Sampler, LongSamplesAreCutAndCounted) {
  const TemporaryTokenFile path(std::vector<test::SampleBytes>{{{5, 6, 7, 8}, {0, 1, 1, 1}}, {{9, 10}, {0, 1}}});
  const TokenFile file = TokenFile::open(path.path());
  Sampler sampler(file, 1, 3, 0, Order::Sequential);

  const Batch batch = sampler.next();

  EXPECT_THAT(batch.tokens, ElementsAre(5, 6, 7));
  EXPECT_THAT(batch.labels, ElementsAre(6, 7, -100));
  EXPECT_EQ(sampler.cut_tokens(), 1u);
}

TEST(Sampler, FewerSamplesThanABatchStillMakeOne) {
  const TemporaryTokenFile path(numbered(1));
  const TokenFile file = TokenFile::open(path.path());
  Sampler sampler(file, 8, 16, 0, Order::Shuffled);

  EXPECT_EQ(sampler.batches_per_epoch(), 1u);
  EXPECT_EQ(sampler.next().sequences, 1);
  EXPECT_EQ(sampler.next().sequences, 1);
}

TEST_F(NumberedSamples, SequentialOrderIsThatOfTheFile) {
  Sampler sampler(file_, 10, 16, 3, Order::Sequential);

  const std::vector<std::int64_t> ids = ids_of_epoch(sampler);

  ASSERT_EQ(ids.size(), kCount);
  for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(ids[i], static_cast<std::int64_t>(i));
}

TEST_F(NumberedSamples, EveryEpochHoldsEverySampleOnce) {
  Sampler sampler(file_, 10, 16, 3, Order::Shuffled);
  EXPECT_EQ(sampler.batches_per_epoch(), 11u);

  for (int epoch = 0; epoch < 3; ++epoch) {
    const std::vector<std::int64_t> ids = ids_of_epoch(sampler);
    EXPECT_EQ(ids.size(), kCount);
    EXPECT_EQ(std::set<std::int64_t>(ids.begin(), ids.end()).size(), kCount);
  }
}

TEST_F(NumberedSamples, TheLastBatchOfAnEpochIsSmaller) {
  Sampler sampler(file_, 10, 16, 3, Order::Shuffled);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(sampler.next().sequences, 10);

  EXPECT_EQ(sampler.next().sequences, 1);
  EXPECT_EQ(sampler.next().sequences, 10);
  EXPECT_EQ(sampler.state().epoch, 1u);
  EXPECT_EQ(sampler.state().position, 10u);
}

TEST_F(NumberedSamples, SeedAndEpochEachChangeTheOrder) {
  Sampler one(file_, 10, 16, 1, Order::Shuffled);
  Sampler two(file_, 10, 16, 2, Order::Shuffled);

  const std::vector<std::int64_t> first = ids_of_epoch(one);
  const std::vector<std::int64_t> second = ids_of_epoch(one);

  EXPECT_NE(first, second);
  EXPECT_NE(first, ids_of_epoch(two));
  EXPECT_NE(second, ids_of_epoch(two));
}

TEST_F(NumberedSamples, TheOrderIsAFunctionOfTheSeedAlone) {
  Sampler one(file_, 10, 16, 7, Order::Shuffled);
  Sampler two(file_, 3, 16, 7, Order::Shuffled);

  EXPECT_EQ(ids_of_epoch(one), ids_of_epoch(two));
}

// Checkpoints outlive releases: the order of (seed 42, epoch 0) must never change.
TEST(Sampler, TheOrderIsTheSameInEveryRelease) {
  const TemporaryTokenFile path(numbered(8));
  const TokenFile file = TokenFile::open(path.path());
  Sampler sampler(file, 8, 16, 42, Order::Shuffled);

  EXPECT_THAT(ids_of(sampler.next()), ElementsAre(3, 6, 0, 7, 1, 2, 5, 4));
}

TEST_F(NumberedSamples, ARestoredSamplerGivesExactlyTheRemainingSamples) {
  for (const std::uint64_t consumed :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{10}, std::uint64_t{11}, std::uint64_t{17}}) {
    SCOPED_TRACE("after " + std::to_string(consumed) + " batches");
    Sampler original(file_, 10, 16, 9, Order::Shuffled);
    for (std::uint64_t i = 0; i < consumed; ++i) original.next();
    Sampler resumed(file_, 10, 16, 9, Order::Shuffled);

    resumed.restore(original.state());

    for (int i = 0; i < 25; ++i) EXPECT_EQ(ids_of(resumed.next()), ids_of(original.next()));
  }
}

TEST_F(NumberedSamples, AStateOfOtherDataIsRefused) {
  Sampler sampler(file_, 10, 16, 9, Order::Shuffled);

  EXPECT_THROW(sampler.restore({.epoch = 0, .position = kCount + 1}), DataError);
}

bool is_empty(const Batch& batch) {
  return batch.sequences == 1 && batch.tokens_each == 2 && batch.target_tokens == 0 &&
         batch.labels == std::vector<std::int64_t>{-100, -100};
}

// The ids of `steps` global batches, by micro-batch of all ranks in order; an empty list is an empty micro-batch.
std::vector<std::vector<std::vector<std::int64_t>>> dealt(const TokenFile& file, std::size_t ranks, std::size_t micro,
                                                          int steps) {
  std::vector<Sampler> samplers(ranks, Sampler(file, 2, 16, 5, Order::Shuffled));
  std::vector<std::vector<std::vector<std::int64_t>>> result;
  for (int step = 0; step < steps; ++step) {
    std::vector<GlobalBatch> parts;
    for (std::size_t r = 0; r < ranks; ++r) {
      parts.push_back(samplers[r].next({r, ranks, micro}));
      EXPECT_EQ(parts[r].micro_batches.size(), micro);
      EXPECT_EQ(parts[r].tokens, parts[0].tokens);
      EXPECT_EQ(samplers[r].state().epoch, samplers[0].state().epoch);
      EXPECT_EQ(samplers[r].state().position, samplers[0].state().position);
    }
    std::uint64_t tokens = 0;
    auto& global = result.emplace_back();
    for (std::size_t g = 0; g < ranks * micro; ++g) {
      const Batch& batch = parts[g % ranks].micro_batches[g / ranks];
      tokens += static_cast<std::uint64_t>(batch.sequences * batch.tokens_each);
      global.push_back(is_empty(batch) ? std::vector<std::int64_t>{} : ids_of(batch));
    }
    EXPECT_EQ(tokens, parts[0].tokens);
  }
  return result;
}

// DI-10: ranks saw the same samples, or every epoch had the same order.
TEST_F(NumberedSamples, RanksShareEveryEpochWithoutOverlapAndItIsShuffledAnew) {
  for (const std::size_t ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    const Share share{0, ranks, 1};
    const auto per_epoch = static_cast<int>(Sampler(file_, 2, 16, 5, Order::Shuffled).batches_per_epoch(share));
    std::vector<std::vector<std::int64_t>> epochs(2);
    const auto steps = dealt(file_, ranks, 1, 2 * per_epoch);
    for (std::size_t s = 0; s < steps.size(); ++s) {
      for (const auto& batch : steps[s]) {
        auto& epoch = epochs[s / static_cast<std::size_t>(per_epoch)];
        epoch.insert(epoch.end(), batch.begin(), batch.end());
      }
    }
    for (const std::vector<std::int64_t>& epoch : epochs) {
      EXPECT_EQ(epoch.size(), kCount);
      EXPECT_EQ(std::set<std::int64_t>(epoch.begin(), epoch.end()).size(), kCount);
    }
    EXPECT_NE(epochs[0], epochs[1]);
  }
}

TEST_F(NumberedSamples, AGlobalBatchDependsOnTheNumberOfItsMicroBatchesAlone) {
  const auto alone = dealt(file_, 1, 12, 20);
  for (const std::size_t ranks : {2, 3, 4, 6, 12}) {
    EXPECT_EQ(dealt(file_, ranks, 12 / ranks, 20), alone) << ranks << " ranks";
  }
}

// DI-02: ranks with unequal numbers of batches never ended the epoch together.
TEST(Sampler, AShortGlobalBatchLeavesMicroBatchesSmallerOrEmpty) {
  const TemporaryTokenFile path(numbered(7));
  const TokenFile file = TokenFile::open(path.path());
  const auto sizes = [&](std::size_t ranks, int steps) {
    std::vector<std::vector<std::size_t>> result;
    for (const auto& step : dealt(file, ranks, 1, steps)) {
      auto& counts = result.emplace_back();
      for (const auto& batch : step) counts.push_back(batch.size());
    }
    return result;
  };

  EXPECT_THAT(sizes(2, 3), ElementsAre(ElementsAre(2, 2), ElementsAre(2, 1), ElementsAre(2, 2)));
  EXPECT_THAT(sizes(3, 3), ElementsAre(ElementsAre(2, 2, 2), ElementsAre(1, 0, 0), ElementsAre(2, 2, 2)));
}

TEST(Sampler, FewerSamplesThanRanksLeaveRanksWithEmptyBatches) {
  const TemporaryTokenFile path(numbered(2));
  const TokenFile file = TokenFile::open(path.path());

  for (const auto& step : dealt(file, 3, 1, 4)) {
    EXPECT_EQ(step[0].size(), 2u);
    EXPECT_THAT(step, ElementsAre(::testing::SizeIs(2), ::testing::IsEmpty(), ::testing::IsEmpty()));
  }
}

TEST_F(NumberedSamples, AStateOfSomeRanksContinuesOnOthers) {
  Sampler two(file_, 2, 16, 9, Order::Shuffled);
  for (int i = 0; i < 7; ++i) (void)two.next({0, 2, 3});
  Sampler three(file_, 2, 16, 9, Order::Shuffled);

  three.restore(two.state());

  EXPECT_EQ(ids_of(two.next({0, 2, 3}).micro_batches[0]), ids_of(three.next({0, 3, 2}).micro_batches[0]));
}

// Each of the 6 orders of 3 samples is as likely as any other: with 6000 seeds, 1000 expected, standard deviation 29.
TEST(Sampler, AllOrdersAreEquallyLikely) {
  const TemporaryTokenFile path(numbered(3));
  const TokenFile file = TokenFile::open(path.path());
  std::map<std::vector<std::int64_t>, int> seen;

  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    Sampler sampler(file, 3, 16, seed, Order::Shuffled);
    ++seen[ids_of(sampler.next())];
  }

  ASSERT_EQ(seen.size(), 6u);
  for (const auto& [order, times] : seen) EXPECT_NEAR(times, 1000, 150) << ::testing::PrintToString(order);
}

TEST(Sampler, SizesThatLeaveNoTargetAreTheCallersMistake) {
  const TemporaryTokenFile path(numbered(1));
  const TokenFile file = TokenFile::open(path.path());

  EXPECT_THROW(Sampler(file, 0, 16, 0, Order::Shuffled), ContractViolation);
  EXPECT_THROW(Sampler(file, 1, 1, 0, Order::Shuffled), ContractViolation);
}

}  // namespace
}  // namespace strata::data
