#include "nvme/drive_probe.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <random>
#include <system_error>
#include <thread>

#include "core/bytes.h"
#include "core/error.h"
#include "core/parallel.h"
#include "nvme/backend_factory.h"
#include "nvme/io_queue.h"

namespace strata::nvme {
namespace fs = std::filesystem;
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::uint64_t kTransferBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kSustainedWindow = std::uint64_t{256} << 20;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double cpu_seconds() {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;  // cannot fail with these arguments
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// As many threads as there are CPUs, computing until the end.
class BusyCpus {
 public:
  explicit BusyCpus(std::size_t threads) {
    for (std::size_t i = 0; i < threads; ++i) {
      threads_.emplace_back([](std::stop_token stop) {
        volatile std::uint64_t value = 1;
        while (!stop.stop_requested()) value = value * 3;
      });
    }
  }

 private:
  std::vector<std::jthread> threads_;
};

}  // namespace

// One direction of a trial: transfers one after the other through the extent, round and round, of which `window` bytes
// are submitted at any time. Places in memory are used again while they are in flight when the window is larger than
// the buffer: what the bytes are does not matter here.
struct DriveProbe::Lane {
  IoQueue& queue;
  const Extent& extent;
  IoOp op;
  std::span<std::byte> memory;
  std::uint64_t& at;
  std::uint64_t window;
  std::uint64_t submitted = 0;
  std::uint64_t completed = 0;
  std::deque<Event> events{};

  void step() {
    while (events.size() * kTransferBytes >= window) wait_for_one();
    if (at + kTransferBytes > extent.padded_bytes) at = 0;
    const std::uint64_t place = submitted % (memory.size() / kTransferBytes * kTransferBytes);
    events.push_back(queue.submit({op, &extent, at, memory.data() + place, kTransferBytes, IoUrgency::Prefetch}));
    at += kTransferBytes;
    submitted += kTransferBytes;
  }
  void wait_for_one() {
    const Event oldest = std::move(events.front());
    events.pop_front();
    oldest.wait();
    completed += kTransferBytes;
  }
  void finish() {
    while (!events.empty()) wait_for_one();
  }
};

void DriveProbe::check(const ProbeOptions& options) {
  const std::string where = options.directory.string();
  std::error_code error;
  const fs::file_status status = fs::status(options.directory, error);
  if (!fs::exists(status)) throw ConfigError(where + " does not exist; name a directory on the drive");
  if (!fs::is_directory(status)) throw ConfigError(where + " is not a directory; name a directory on the drive");
  if (options.bytes < kLeastBytes) {
    throw ConfigError("at least " + format_bytes(kLeastBytes) + " are needed to measure a drive, got " +
                      format_bytes(options.bytes));
  }
  const fs::space_info space = fs::space(options.directory, error);
  if (error) throw IoError({error.value(), "statvfs", where, 0, 0, ""});
  const std::uint64_t need = options.bytes + options.sustained_bytes + kSpareBytes;
  if (space.available < need) {
    throw OutOfBudget(where + " has " + format_bytes(space.available) + " free and measuring it takes " +
                          format_bytes(need) + "; free some, or ask for fewer bytes",
                      need, space.available);
  }
}

DriveProbe::DriveProbe(const ProbeOptions& options)
    : options_((check(options), options)),
      file_(options.directory, IoMode::Direct),
      memory_("host", 2 * kBufferBytes),
      read_buffer_(allocate_host(memory_, kBufferBytes, MemoryTag::Staging)),
      write_buffer_(allocate_host(memory_, kBufferBytes, MemoryTag::Staging)),
      extent_(reserve("measured", options.bytes)) {
  // Bytes that no drive can compress.
  std::mt19937_64 random(1);
  std::uint64_t* const words = reinterpret_cast<std::uint64_t*>(write_buffer_.data());
  std::generate(words, words + kBufferBytes / sizeof(std::uint64_t), [&random] { return random(); });
  fill();
}

Extent DriveProbe::reserve(const char* name, std::uint64_t bytes) {
  Extent extent;
  extent.name = name;
  extent.directory = options_.directory.string();
  extent.fd = file_.fd();
  extent.bytes = extent.padded_bytes = align_up(align_up(bytes, kTransferBytes), file_.extent_alignment());
  extent.alignment = file_.request_alignment();
  extent.offset = file_.take(extent.padded_bytes, extent.name);
  return extent;
}

// Space that was reserved but never written is read without the drive.
void DriveProbe::fill() {
  IoMeter meter;
  IoQueue queue([] { return make_io_backend({}); }, {}, meter.add_drive(extent_.directory));
  Lane lane{queue, extent_, IoOp::Write, write_buffer_.span(), write_at_, kBufferBytes};
  while (lane.submitted < extent_.padded_bytes) lane.step();
  lane.finish();
  // Away from where reads begin, so that a mix does not read what was written a moment ago.
  write_at_ = extent_.padded_bytes / 2 / kTransferBytes * kTransferBytes;
}

bool DriveProbe::knows(RingMode mode) {
  try {
    return UringBackend({.mode = mode}).mode() == mode;
  } catch (const IoError&) {  // no ring of any mode
    return false;
  }
}

Sample DriveProbe::measure(const Trial& trial) {
  const std::uint64_t in_flight = trial.block_bytes * trial.depth;
  // Both directions always have something waiting, or a burst would end early.
  const std::uint64_t window = std::max({2 * in_flight, in_flight + trial.burst_bytes, 2 * kTransferBytes});
  BackendOptions backend;
  backend.uring = {.mode = trial.ring,
                   .entries = trial.depth,
                   .files = {file_.fd()},
                   .regions = {read_buffer_.span(), write_buffer_.span()}};
  IoMeter meter;
  IoQueue queue([&] { return make_io_backend(backend); },
                {.block_bytes = trial.block_bytes, .depth = trial.depth, .burst_bytes = trial.burst_bytes},
                meter.add_drive(extent_.directory));
  Lane reads{queue, extent_, IoOp::Read, read_buffer_.span(), read_at_, window};
  Lane writes{queue, extent_, IoOp::Write, write_buffer_.span(), write_at_, window};
  const BusyCpus others(trial.busy ? usable_cpus() : 0);
  const double cpu = cpu_seconds();
  const Clock::time_point start = Clock::now();
  do {
    if (trial.pattern != Pattern::Write) reads.step();
    if (trial.pattern != Pattern::Read) writes.step();
  } while (seconds_since(start) < trial.seconds);
  reads.finish();
  writes.finish();
  const auto moved = static_cast<double>(reads.submitted + writes.submitted);
  return {.rate = moved / seconds_since(start), .cpu_per_byte = (cpu_seconds() - cpu) / moved};
}

SustainedReport DriveProbe::write_sustained(const DeviceProfile& profile) {
  const Extent fresh = reserve("sustained", options_.sustained_bytes);
  BackendOptions backend;
  backend.uring = {
      .mode = profile.ring, .entries = profile.queue_depth, .files = {file_.fd()}, .regions = {write_buffer_.span()}};
  IoMeter meter;
  IoQueue queue([&] { return make_io_backend(backend); },
                {.block_bytes = profile.block_bytes, .depth = profile.queue_depth}, meter.add_drive(fresh.directory));
  SustainedReport report;
  report.window_bytes = std::min(kSustainedWindow, fresh.padded_bytes);
  std::uint64_t at = 0;
  Lane lane{queue,       fresh,
            IoOp::Write, write_buffer_.span(),
            at,          std::max<std::uint64_t>(2 * profile.block_bytes * profile.queue_depth, 2 * kTransferBytes)};
  std::uint64_t window_begin = 0;
  Clock::time_point start = Clock::now();
  const auto end_window = [&] {
    if (lane.completed - window_begin < report.window_bytes) return;
    report.rates.push_back(static_cast<double>(lane.completed - window_begin) / seconds_since(start));
    window_begin = lane.completed;
    start = Clock::now();
  };
  while (lane.submitted < fresh.padded_bytes) {
    lane.step();
    end_window();
  }
  while (!lane.events.empty()) {
    lane.wait_for_one();
    end_window();
  }
  report.first_rate = report.rates.front();
  std::vector<double> last(report.rates.end() - static_cast<std::ptrdiff_t>((report.rates.size() + 3) / 4),
                           report.rates.end());
  std::sort(last.begin(), last.end());
  report.last_rate = last[last.size() / 2];
  return report;
}

}  // namespace strata::nvme
