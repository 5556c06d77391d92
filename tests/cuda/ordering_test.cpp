// Random programs over several CUDA streams against what they mean one statement after the other.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda/fake_device.h"
#include "support/event_failures.h"
#include "support/test_seed.h"
#include "support/watchdog.h"

namespace strata::test {
namespace {

constexpr std::size_t kStreams = 4;
constexpr std::size_t kCells = 6;
constexpr std::uint64_t kBudgetBytes = std::uint64_t{4} << 20;

// Statements read one cell and write another, on any stream; each waits for the accesses that it must not overtake, and
// for nothing else. Now and then one waits for an event of the host as well, which is completed later.
class RandomProgram {
 public:
  explicit RandomProgram(std::uint64_t seed)
      : random_(seed),
        runtime_({.seed = seed}),
        device_({.index = 0, .budget_bytes = kBudgetBytes, .on_stream_thread = {}}) {
    for (std::size_t i = 0; i < kStreams; ++i) streams_.push_back(device_.create_stream("s" + std::to_string(i)));
    for (std::size_t i = 0; i < kCells; ++i) {
      cells_.push_back(Cell{device_.allocate(kPageBytes, MemoryTag::Gather), Event(), {}, std::byte{0}});
      write_constant(i);
    }
  }

  void run(int statements) {
    for (int i = 0; i < statements; ++i) {
      switch (below(6)) {
        case 0:
          write_constant(below(kCells));
          break;
        case 1:
          replace(below(kCells));
          break;
        case 2:
          hold_up();
          break;
        default:
          add(below(kCells), below(kCells));
      }
    }
    release();
  }

  void check() {
    for (std::size_t i = 0; i < kCells; ++i) {
      const Buffer result = pinned(device_.context(), host_budget_, kPageBytes);
      Stream& stream = begin({i}, {});
      stream.copy(result.data(), cells_[i].memory.data(), kPageBytes);
      stream.record().wait();
      EXPECT_EQ(result.data()[0], cells_[i].expected) << "cell " << i;
      EXPECT_EQ(result.data()[kPageBytes - 1], cells_[i].expected) << "cell " << i;
    }
  }

 private:
  struct Cell {
    Buffer memory;
    Event written;
    std::vector<Event> read;  // since then
    std::byte expected;
  };

  std::size_t below(std::size_t end) { return std::uniform_int_distribution<std::size_t>(0, end - 1)(random_); }

  // A stream whose later work comes after what it depends on.
  Stream& begin(const std::vector<std::size_t>& reads, const std::vector<std::size_t>& writes) {
    Stream& stream = *streams_[below(kStreams)];
    for (const std::size_t cell : reads) stream.wait(cells_[cell].written);
    for (const std::size_t cell : writes) {
      stream.wait(cells_[cell].written);
      for (const Event& event : cells_[cell].read) stream.wait(event);
    }
    return stream;
  }

  void wrote(Stream& stream, std::size_t cell, std::byte value) {
    cells_[cell].written = stream.record();
    cells_[cell].read.clear();
    cells_[cell].expected = value;
  }

  void write_constant(std::size_t cell) {
    const auto value = static_cast<std::byte>(below(256));
    sources_.push_back(pinned(device_.context(), host_budget_, kPageBytes));
    std::memset(sources_.back().data(), static_cast<int>(value), kPageBytes);
    Stream& stream = begin({}, {cell});
    stream.copy(cells_[cell].memory.data(), sources_.back().data(), kPageBytes);
    wrote(stream, cell, value);
  }

  // to = to + from, by a kernel.
  void add(std::size_t to, std::size_t from) {
    Stream& stream = begin({from}, {to});
    std::byte* const destination = cells_[to].memory.data();
    const std::byte* const source = cells_[from].memory.data();
    stream.launch([destination, source] {
      launch_kernel([destination, source] {
        for (std::size_t i = 0; i < kPageBytes; ++i) {
          destination[i] =
              static_cast<std::byte>(static_cast<unsigned>(destination[i]) + static_cast<unsigned>(source[i]));
        }
      });
    });
    const auto sum = static_cast<unsigned>(cells_[to].expected) + static_cast<unsigned>(cells_[from].expected);
    const Event done = stream.record();
    if (to != from) cells_[from].read.push_back(done);
    wrote(stream, to, static_cast<std::byte>(sum));
  }

  // Moves a cell into new memory and retires the old one.
  void replace(std::size_t cell) {
    Stream& stream = begin({}, {cell});
    Buffer moved = device_.allocate(kPageBytes, MemoryTag::Gather);
    stream.copy(moved.data(), cells_[cell].memory.data(), kPageBytes);
    wrote(stream, cell, cells_[cell].expected);
    stream.retire(std::exchange(cells_[cell].memory, std::move(moved)), cells_[cell].written);
  }

  void hold_up() {
    if (below(3) == 0) {
      release();
      return;
    }
    gates_.emplace_back();
    gates_.back().submit();
    streams_[below(kStreams)]->wait(gates_.back().event());
  }
  void release() {
    for (EventSource& gate : gates_) gate.complete();
    gates_.clear();
  }

  std::mt19937_64 random_;
  FakeRuntime runtime_;
  Budget host_budget_{"host of the test", kBudgetBytes};
  cuda::CudaDevice device_;
  std::vector<Buffer> sources_;
  std::vector<Cell> cells_;
  std::vector<EventSource> gates_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

TEST(CudaOrdering, RandomProgramsMeanWhatTheySayOneStatementAfterTheOther) {
  const std::uint64_t first = test_seed(1);
  for (std::uint64_t seed = first; seed < first + 6; ++seed) {
    SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
    const Watchdog watchdog("seed " + std::to_string(seed));
    RandomProgram program(seed);
    program.run(120);
    program.check();
  }
}

// A stream is failed from the first failure on that it runs into, by itself or by waiting; its events from then on are.
class RandomFailures {
 public:
  explicit RandomFailures(std::uint64_t seed)
      : random_(seed), runtime_({.seed = seed}), device_({.index = 0, .budget_bytes = 0, .on_stream_thread = {}}) {
    for (std::size_t i = 0; i < kStreams; ++i) streams_.push_back(device_.create_stream("s" + std::to_string(i)));
  }

  void run(int statements) {
    for (int i = 0; i < statements; ++i) {
      const std::size_t at = below(kStreams);
      switch (below(12)) {
        case 0:
          fail(at, "failure " + std::to_string(i));
          break;
        case 1:
        case 2:
        case 3:
          wait(at);
          break;
        case 4:
          streams_[at]->launch([] { launch_kernel([] {}); });
          break;
        default:
          events_.emplace_back(streams_[at]->record(), causes_[at]);
      }
    }
    for (std::size_t i = 0; i < events_.size(); ++i) {
      EXPECT_EQ(text_of(events_[i].first.wait_noexcept()), events_[i].second) << "event " << i;
    }
  }

 private:
  std::size_t below(std::size_t end) { return std::uniform_int_distribution<std::size_t>(0, end - 1)(random_); }

  void fail(std::size_t at, const std::string& cause) {
    streams_[at]->launch([cause] { throw std::runtime_error(cause); });
    if (causes_[at] == "success") causes_[at] = cause;
  }
  void wait(std::size_t at) {
    if (events_.empty()) return;
    const auto& [event, cause] = events_[below(events_.size())];
    streams_[at]->wait(event);
    if (causes_[at] == "success") causes_[at] = cause;
  }

  std::mt19937_64 random_;
  FakeRuntime runtime_;
  cuda::CudaDevice device_;
  std::vector<std::string> causes_ = std::vector<std::string>(kStreams, "success");
  std::vector<std::pair<Event, std::string>> events_;  // with what each must end with
  std::vector<std::unique_ptr<Stream>> streams_;
};

TEST(CudaOrdering, FailuresReachExactlyWhatDependsOnThem) {
  const std::uint64_t first = test_seed(1);
  for (std::uint64_t seed = first; seed < first + 10; ++seed) {
    SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
    const Watchdog watchdog("seed " + std::to_string(seed));
    RandomFailures(seed).run(60);
  }
}

}  // namespace
}  // namespace strata::test
