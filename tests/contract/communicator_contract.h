// What every Communicator promises, as one suite. A new one joins with a CommunicatorCase and
//   INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorContract, ::testing::Values(...), communicator_case_name);
// The ranks of a test are threads. Memory of collectives on streams is reached only through copies, so that the suite
// runs on devices whose memory the host cannot touch.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/communicator.h"
#include "core/error.h"
#include "support/event_failures.h"
#include "support/plain_math.h"
#include "support/run_ranks.h"
#include "support/test_seed.h"
#include "support/watchdog.h"

namespace strata::test {

struct CommunicatorCase {
  std::string name;
  // Communicators that belong together, one per rank.
  std::function<std::vector<std::shared_ptr<Communicator>>(std::size_t world)> make;
  // The device of one rank, whose memory the collectives on streams work on.
  std::function<std::unique_ptr<Device>(std::size_t rank)> device;
  std::size_t max_world = 4;
  // A device runs what is queued: one that has begun ends quietly when it is aborted, and later calls tell.
  bool on_device = false;
};

inline void PrintTo(const CommunicatorCase& communicator_case, std::ostream* out) {
  *out << communicator_case.name;
}
inline std::string communicator_case_name(const ::testing::TestParamInfo<CommunicatorCase>& info) {
  return info.param.name;
}

// One rank of a test: its communicator and the stream of its collectives.
class ContractRank {
 public:
  ContractRank(const CommunicatorCase& of, std::shared_ptr<Communicator> shared, std::size_t index)
      : rank(index), comm(std::move(shared)), device_(of.device(index)), stream(device_->create_stream("comm")) {}

  const std::size_t rank;
  const std::shared_ptr<Communicator> comm;

 private:
  const std::unique_ptr<Device> device_;

 public:
  const std::unique_ptr<Stream> stream;

  // Memory of the device that holds `values`; complete when work of the stream queued later runs.
  TensorSpan upload(const TensorSpan& values) {
    Buffer& host =
        buffers_.emplace_back(device_->allocate(std::max<std::size_t>(values.bytes(), 1), MemoryTag::Staging));
    if (values.bytes() > 0) stream->copy(host.data(), values.data, values.bytes());
    return {host.data(), values.dtype, values.numel};
  }
  // Waits for all that is queued. Throws what failed.
  std::vector<std::byte> download(const TensorSpan& values) {
    std::vector<std::byte> bytes(values.bytes());
    if (!bytes.empty()) stream->copy(bytes.data(), values.data, bytes.size());
    stream->record().wait();
    return bytes;
  }

 private:
  std::vector<Buffer> buffers_;  // freed before the device
};

class CommunicatorContract : public ::testing::TestWithParam<CommunicatorCase> {
 protected:
  static constexpr DType kTypes[] = {DType::F32, DType::BF16, DType::F16};

  std::vector<std::size_t> worlds() const {
    std::vector<std::size_t> all;
    for (std::size_t n = 1; n <= GetParam().max_world; ++n) all.push_back(n);
    return all;
  }
  // Runs fn(rank) for all ranks of a new set.
  void with_ranks(std::size_t world, const std::function<void(ContractRank&)>& fn) const {
    const auto comms = GetParam().make(world);
    ASSERT_EQ(comms.size(), world);
    run_ranks(world, [&](std::size_t r) {
      ContractRank rank(GetParam(), comms[r], r);
      fn(rank);
    });
  }
  // What rank `rank` brings: magnitudes that differ so much that the order of a sum shows in its bits.
  static std::vector<std::byte> values_of(std::size_t rank, DType dtype, std::size_t numel, std::uint32_t salt = 0) {
    std::vector<std::byte> bytes(numel * bytes_of(dtype));
    const TensorSpan span{bytes.data(), dtype, numel};
    std::mt19937 random(static_cast<std::uint32_t>(rank * 7919 + numel) + salt);
    std::uniform_real_distribution<float> mantissa(-2.0F, 2.0F);
    for (std::size_t i = 0; i < numel; ++i) {
      store_element(span, i, std::ldexp(mantissa(random), static_cast<int>(random() % 16) - 8));
    }
    return bytes;
  }
  static TensorSpan span_of(std::vector<std::byte>& bytes, DType dtype) {
    return {bytes.data(), dtype, bytes.size() / bytes_of(dtype)};
  }
  // Row `row` of `bytes`, of which there are `world`.
  static std::vector<std::byte> row_of(const std::vector<std::byte>& bytes, std::size_t world, std::size_t row) {
    const auto size = static_cast<std::ptrdiff_t>(bytes.size() / world);
    const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(row) * size;
    return {first, first + size};
  }
  // The definition of a sum: rank order, fp32, rounded once.
  static std::vector<std::byte> sum_of_rows(std::size_t world, std::size_t row, DType dtype, std::size_t numel) {
    std::vector<std::vector<std::byte>> all;
    for (std::size_t r = 0; r < world; ++r) all.push_back(row_of(values_of(r, dtype, numel), world, row));
    std::vector<std::byte> sum(all[0].size());
    for (std::size_t i = 0; i < numel / world; ++i) {
      float total = load_element(span_of(all[0], dtype), i);
      for (std::size_t r = 1; r < world; ++r) total += load_element(span_of(all[r], dtype), i);
      store_element(span_of(sum, dtype), i, total);
    }
    return sum;
  }
  // Calls check(rank, dtype, numel) in all ranks for every type, number of ranks and length of a row: none, few, odd,
  // and several chunks of whatever an implementation cuts rows into.
  void for_all_shapes(const std::function<void(ContractRank&, DType, std::size_t numel)>& check) const {
    const Watchdog watchdog(GetParam().name + ": a collective");
    for (const std::size_t world : worlds()) {
      with_ranks(world, [&](ContractRank& rank) {
        for (const DType dtype : kTypes) {
          std::vector<std::size_t> rows = {0, 1, 7, 1000, 70001};
          if (dtype == DType::BF16) rows.push_back(530001);  // one type alone: seconds under a sanitizer
          for (const std::size_t row : rows) {
            SCOPED_TRACE(std::to_string(world) + " ranks, " + std::string(name_of(dtype)) + " x " +
                         std::to_string(row));
            check(rank, dtype, row * world);
          }
        }
      });
    }
  }
};

TEST_P(CommunicatorContract, KnowsItsPlace) {
  for (const std::size_t world : worlds()) {
    with_ranks(world, [&](ContractRank& rank) {
      EXPECT_EQ(rank.comm->rank(), rank.rank);
      EXPECT_EQ(rank.comm->world(), world);
    });
  }
}

TEST_P(CommunicatorContract, AllGatherFillsEveryRowInPlace) {
  for_all_shapes([](ContractRank& rank, DType dtype, std::size_t numel) {
    const std::size_t world = rank.comm->world();
    std::vector<std::byte> mine = values_of(rank.rank, dtype, numel);
    const TensorSpan full = rank.upload(span_of(mine, dtype));

    rank.comm->all_gather(*rank.stream, full);

    const std::vector<std::byte> got = rank.download(full);
    for (std::size_t r = 0; r < world; ++r) {
      ASSERT_EQ(row_of(got, world, r), row_of(values_of(r, dtype, numel), world, r)) << "row " << r;
    }
  });
}

TEST_P(CommunicatorContract, AllToAllSwapsRowsInPlace) {
  for_all_shapes([](ContractRank& rank, DType dtype, std::size_t numel) {
    const std::size_t world = rank.comm->world();
    std::vector<std::byte> mine = values_of(rank.rank, dtype, numel);
    const TensorSpan full = rank.upload(span_of(mine, dtype));

    rank.comm->all_to_all(*rank.stream, full);

    const std::vector<std::byte> got = rank.download(full);
    for (std::size_t r = 0; r < world; ++r) {
      ASSERT_EQ(row_of(got, world, r), row_of(values_of(r, dtype, numel), world, rank.rank)) << "row " << r;
    }
  });
}

TEST_P(CommunicatorContract, ReduceScatterSumsInRankOrderInFp32AndRoundsOnce) {
  for_all_shapes([](ContractRank& rank, DType dtype, std::size_t numel) {
    const std::size_t world = rank.comm->world();
    std::vector<std::byte> mine = values_of(rank.rank, dtype, numel);
    const TensorSpan full = rank.upload(span_of(mine, dtype));

    rank.comm->reduce_scatter(*rank.stream, full);

    ASSERT_EQ(row_of(rank.download(full), world, rank.rank), sum_of_rows(world, rank.rank, dtype, numel));
  });
}

TEST_P(CommunicatorContract, CollectivesQueueUpAndRunInStreamOrder) {
  const Watchdog watchdog(GetParam().name + ": queued collectives");
  for (const std::size_t world : worlds()) {
    with_ranks(world, [&](ContractRank& rank) {
      const std::size_t numel = 1000 * world;
      std::vector<std::vector<std::byte>> mine;
      for (std::uint32_t i = 0; i < 60; ++i) mine.push_back(values_of(rank.rank, DType::BF16, numel, i));
      std::vector<TensorSpan> full;
      for (std::vector<std::byte>& bytes : mine) full.push_back(rank.upload(span_of(bytes, DType::BF16)));

      // Gathering what the exchange brought shows that the order of one buffer's collectives holds, too.
      for (const TensorSpan& span : full) {
        rank.comm->all_to_all(*rank.stream, span);
        rank.comm->all_gather(*rank.stream, span);
      }

      rank.stream->record().wait();
      for (std::uint32_t i = 0; i < full.size(); ++i) {
        const std::vector<std::byte> got = rank.download(full[i]);
        for (std::size_t r = 0; r < world; ++r) {
          // Row r of rank r after the exchange is its own, which never moved.
          ASSERT_EQ(row_of(got, world, r), row_of(values_of(r, DType::BF16, numel, i), world, r)) << "collective " << i;
        }
      }
    });
  }
}

TEST_P(CommunicatorContract, BothChannelsWorkAtTheSameTime) {
  const Watchdog watchdog(GetParam().name + ": two channels");
  for (const std::size_t world : worlds()) {
    with_ranks(world, [&](ContractRank& rank) {
      const std::size_t numel = 50000 * world;
      std::vector<std::byte> mine = values_of(rank.rank, DType::F32, numel);
      const TensorSpan full = rank.upload(span_of(mine, DType::F32));
      for (int i = 0; i < 20; ++i) rank.comm->all_gather(*rank.stream, full);

      for (int i = 0; i < 50; ++i) {
        double value = static_cast<double>(rank.rank + 1);
        rank.comm->all_reduce_sum({&value, 1});
        ASSERT_EQ(value, static_cast<double>(world * (world + 1)) / 2);
      }

      const std::vector<std::byte> got = rank.download(full);
      for (std::size_t r = 0; r < world; ++r) {
        ASSERT_EQ(row_of(got, world, r), row_of(values_of(r, DType::F32, numel), world, r)) << "row " << r;
      }
    });
  }
}

TEST_P(CommunicatorContract, AllGatherValuesFillsEveryRow) {
  const Watchdog watchdog(GetParam().name + ": all_gather_values");
  for (const std::size_t world : worlds()) {
    with_ranks(world, [&](ContractRank& rank) {
      for (const std::size_t n : {0, 1, 3, 5000}) {
        std::vector<double> all(n * world, -1);
        for (std::size_t i = 0; i < n; ++i) all[rank.rank * n + i] = static_cast<double>(rank.rank * 100000 + i);

        rank.comm->all_gather_values(all);

        for (std::size_t r = 0; r < world; ++r) {
          for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(all[r * n + i], static_cast<double>(r * 100000 + i));
        }
      }
    });
  }
}

TEST_P(CommunicatorContract, AllReduceSumAddsInRankOrder) {
  const Watchdog watchdog(GetParam().name + ": all_reduce_sum");
  // In any other order some of these come out differently.
  const double parts[] = {1e16, 1.0, -1e16, 3.0};
  for (const std::size_t world : worlds()) {
    double expected = 0;
    for (std::size_t r = 0; r < world; ++r) expected += parts[r];
    with_ranks(world, [&](ContractRank& rank) {
      std::vector<double> values(5, parts[rank.rank]);

      rank.comm->all_reduce_sum(values);

      EXPECT_EQ(values, std::vector<double>(5, expected));
      rank.comm->all_reduce_sum({});
    });
  }
}

TEST_P(CommunicatorContract, BroadcastReachesAllFromEveryRoot) {
  const Watchdog watchdog(GetParam().name + ": broadcast");
  for (const std::size_t world : worlds()) {
    with_ranks(world, [&](ContractRank& rank) {
      for (std::size_t root = 0; root < world; ++root) {
        for (const std::size_t numel : {std::size_t{0}, std::size_t{1}, std::size_t{700001}}) {
          const std::vector<std::byte> sent = values_of(root, DType::BF16, numel);
          std::vector<std::byte> bytes = rank.rank == root ? sent : std::vector<std::byte>(sent.size());

          rank.comm->broadcast(bytes, root);

          ASSERT_EQ(bytes, sent) << "from rank " << root;
        }
      }
    });
  }
}

TEST_P(CommunicatorContract, NobodyLeavesABarrierBeforeAllHaveCome) {
  const Watchdog watchdog(GetParam().name + ": barrier");
  for (const std::size_t world : worlds()) {
    std::atomic<std::size_t> come = 0;
    with_ranks(world, [&](ContractRank& rank) {
      for (std::size_t round = 1; round <= 50; ++round) {
        ++come;
        rank.comm->barrier();
        ASSERT_GE(come, round * world);
        rank.comm->barrier();
      }
    });
  }
}

TEST_P(CommunicatorContract, CountsTheBytesSentExactly) {
  const Watchdog watchdog(GetParam().name + ": counted collectives");
  for (const std::size_t world : worlds()) {
    with_ranks(world, [&](ContractRank& rank) {
      const std::size_t numel = 12345 * world;
      std::vector<std::byte> mine = values_of(rank.rank, DType::BF16, numel);
      const TensorSpan full = rank.upload(span_of(mine, DType::BF16));
      const std::uint64_t others_share = 12345 * 2 * (world - 1);

      rank.comm->all_gather(*rank.stream, full);
      rank.stream->record().wait();
      EXPECT_EQ(rank.comm->stats().bytes_sent, others_share);
      rank.comm->reduce_scatter(*rank.stream, full);
      rank.stream->record().wait();
      EXPECT_EQ(rank.comm->stats().bytes_sent, 2 * others_share);
      rank.comm->all_to_all(*rank.stream, full);
      rank.stream->record().wait();
      EXPECT_EQ(rank.comm->stats().bytes_sent, 3 * others_share);
      EXPECT_EQ(rank.comm->stats().control_bytes, 0U);

      std::vector<double> values(10 * world);
      rank.comm->all_gather_values(values);
      EXPECT_EQ(rank.comm->stats().control_bytes, 10 * sizeof(double) * (world - 1));
      EXPECT_EQ(rank.comm->stats().bytes_sent, 3 * others_share);
      EXPECT_EQ(rank.comm->stats().busy_seconds > 0, true);
    });
  }
}

TEST_P(CommunicatorContract, AbortEndsWhatIsBlockedOnBothChannels) {
  if (GetParam().max_world < 2) GTEST_SKIP() << "needs two ranks";
  const Watchdog watchdog(GetParam().name + ": abort");
  const std::uint64_t seed = test_seed(20261);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 20; ++i) {
    const auto comms = GetParam().make(2);  // rank 1 never comes
    ContractRank rank(GetParam(), comms[0], 0);
    std::vector<std::byte> mine = values_of(0, DType::F32, 20000);
    const TensorSpan full = rank.upload(span_of(mine, DType::F32));
    std::string queued, blocking;
    {
      const std::jthread on_stream([&] {
        switch (i % 3) {
          case 0:
            rank.comm->all_gather(*rank.stream, full);
            break;
          case 1:
            rank.comm->reduce_scatter(*rank.stream, full);
            break;
          default:
            rank.comm->all_to_all(*rank.stream, full);
        }
        queued = text_of(rank.stream->record().wait_noexcept());
      });
      const std::jthread on_caller([&] {
        try {
          i % 2 == 0 ? rank.comm->barrier() : rank.comm->broadcast(mine, 1);
        } catch (const std::exception& e) {
          blocking = e.what();
        }
      });
      // Not to order anything: the abort finds the collectives at all stages, and must end them at each.
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
      rank.comm->abort(std::make_exception_ptr(CommError("rank 1 is lost")));
    }

    if (!GetParam().on_device || queued != "success") {
      EXPECT_EQ(queued, "rank 1 is lost");
    }
    EXPECT_EQ(blocking, "rank 1 is lost");
    EXPECT_THROW(rank.comm->barrier(), CommError) << "and all that comes fails";
  }
}

TEST_P(CommunicatorContract, TheFirstReasonOfAnAbortStays) {
  const auto comms = GetParam().make(1);
  comms[0]->abort(std::make_exception_ptr(CommError("first")));
  comms[0]->abort(std::make_exception_ptr(CommError("second")));
  try {
    comms[0]->barrier();
    FAIL() << "an aborted communicator went on";
  } catch (const CommError& e) {
    EXPECT_STREQ(e.what(), "first");
  }
}

}  // namespace strata::test
