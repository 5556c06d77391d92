#include "bench/bench_link.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <iomanip>
#include <sstream>
#include <thread>

#include "bench/bench_device.h"
#include "bench/summary.h"
#include "core/buffer.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/host_device.h"
#include "core/page_mapping.h"
#include "cuda/bare_copies.h"
#include "engine/cuda_plugin.h"

namespace strata::bench {
namespace {

constexpr double kBar = 0.95;
constexpr std::array kDirections = {"to device", "from device", "both"};
enum Direction : std::size_t { kToDevice, kFromDevice, kBoth };

// One copy of `bytes`, `repeats` times.
struct Work {
  Direction direction = kToDevice;
  std::size_t bytes = 0;
  std::size_t repeats = 1;

  bool to_device() const { return direction != kFromDevice; }
  bool from_device() const { return direction != kToDevice; }
  double moved() const { return static_cast<double>(bytes * repeats) * (direction == kBoth ? 2 : 1); }
};

// The memory of both ways, the largest size each.
class Link {
 public:
  Link(const std::string& device, std::uint64_t most)
      : backend_(open_bench_backend(device, device_bytes(most))),
        host_budget_("bench link", device_bytes(most)),
        host_device_(backend_ ? nullptr : std::make_unique<HostDevice>(device_bytes(most))),
        from_host_(allocate_host(host_budget_, most, MemoryTag::Staging)),
        to_host_(allocate_host(host_budget_, most, MemoryTag::Staging)),
        to_device_(port().allocate(most, MemoryTag::Staging)),
        from_device_(port().allocate(most, MemoryTag::Staging)),
        in_(port().create_stream("in")),
        out_(port().create_stream("out")) {
    std::memset(from_host_.data(), 1, most);
    std::memset(to_host_.data(), 2, most);
    if (!backend_) return;
    for (const Buffer* host : {&from_host_, &to_host_}) {
      pinned_.push_back(backend_->pin({host->data(), whole_pages(host->bytes())}));
    }
    bare_ = reinterpret_cast<strata_cuda_bare_copies_t*>(engine::cuda_plugin_symbol("strata_cuda_bare_copies"));
    if (bare_ == nullptr)
      throw DeviceError("the CUDA plug-in is of another version: it has no strata_cuda_bare_copies");
  }

  cuda::Backend* backend() const { return backend_.get(); }

  double seconds_by_port(const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < work.repeats; ++i) {
      if (work.to_device()) in_->copy(to_device_.data(), from_host_.data(), work.bytes);
      if (work.from_device()) out_->copy(to_host_.data(), from_device_.data(), work.bytes);
    }
    const std::array events = {in_->record(), out_->record()};
    when_all(events).wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  double seconds_bare(const Work& work) { return backend_ ? by_cuda(work) : by_memcpy(work); }

 private:
  static std::uint64_t device_bytes(std::uint64_t most) { return 2 * whole_pages(most); }
  Device& port() { return backend_ ? backend_->device() : *host_device_; }

  double by_cuda(const Work& work) {
    cuda::BareCopies copies{.bytes = work.bytes, .repeats = work.repeats};
    if (work.to_device()) copies.to_device = to_device_.data();
    if (work.from_device()) copies.to_host = to_host_.data();
    copies.from_host = from_host_.data();
    copies.from_device = from_device_.data();
    std::array<char, 512> why{};
    const double seconds = bare_(&copies, why.data(), why.size());
    if (seconds < 0) throw DeviceError(why.data());
    return seconds;
  }

  double by_memcpy(const Work& work) {
    const auto repeat = [&](const Buffer& to, const Buffer& from) {
      for (std::size_t i = 0; i < work.repeats; ++i) std::memcpy(to.data(), from.data(), work.bytes);
    };
    const auto start = std::chrono::steady_clock::now();
    {
      std::jthread other;
      if (work.direction == kBoth) other = std::jthread([&] { repeat(to_host_, from_device_); });
      if (work.to_device()) repeat(to_device_, from_host_);
      if (work.direction == kFromDevice) repeat(to_host_, from_device_);
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  // In the order in which each needs the ones before it.
  const std::unique_ptr<cuda::Backend> backend_;  // null: the host
  Budget host_budget_;
  const std::unique_ptr<HostDevice> host_device_;
  const Buffer from_host_, to_host_, to_device_, from_device_;
  std::vector<std::unique_ptr<cuda::PinnedRegion>> pinned_;
  const std::unique_ptr<Stream> in_, out_;
  strata_cuda_bare_copies_t* bare_ = nullptr;
};

struct Row {
  Work work;
  std::vector<double> ours = {}, bare = {}, ratio = {};
};

void measure(Link& link, Row& row, bool ours_first) {
  double ours = 0, bare = 0;
  if (ours_first) ours = link.seconds_by_port(row.work);
  bare = link.seconds_bare(row.work);
  if (!ours_first) ours = link.seconds_by_port(row.work);
  row.ours.push_back(row.work.moved() / ours);
  row.bare.push_back(row.work.moved() / bare);
  row.ratio.push_back(bare / ours);
}

void check(const LinkBenchOptions& options) {
  const bool has_zero = std::find(options.sizes.begin(), options.sizes.end(), 0u) != options.sizes.end();
  if (options.rounds == 0 || options.bytes == 0 || options.sizes.empty() || has_zero)
    throw ConfigError("bench link needs at least one round and sizes from one byte on");
}

}  // namespace

nlohmann::json run_link_bench(const LinkBenchOptions& options) {
  check(options);
  Link link(options.device, *std::max_element(options.sizes.begin(), options.sizes.end()));
  std::vector<Row> rows;
  for (const std::uint64_t size : options.sizes) {
    for (std::size_t direction = 0; direction < kDirections.size(); ++direction) {
      rows.push_back({.work = {static_cast<Direction>(direction), size, ceil_div(options.bytes, size)}});
    }
  }
  for (std::size_t round = 0; round <= options.rounds; ++round) {
    for (Row& row : rows) measure(link, row, round % 2 == 0);
    if (round == 0) {
      for (Row& row : rows) row = {.work = row.work};
    }
  }
  nlohmann::json result{{"device", link.backend() != nullptr ? "cuda" : "host"},
                        {"gpu", nullptr},
                        {"rounds", options.rounds},
                        {"bytes", options.bytes},
                        {"bar", kBar},
                        {"rows", nlohmann::json::array()}};
  if (link.backend() != nullptr) result["gpu"] = device_json(link.backend()->facts());
  for (const Row& row : rows) {
    result["rows"].push_back({{"bytes", row.work.bytes},
                              {"direction", kDirections[row.work.direction]},
                              {"bytes_per_second", summary(row.ours)},
                              {"bare_bytes_per_second", summary(row.bare)},
                              {"over_bare", summary(row.ratio)}});
  }
  return result;
}

std::string format_link_bench(const nlohmann::json& result) {
  const bool cuda = result["device"] == "cuda";
  std::ostringstream out;
  out << "host <-> " << (cuda ? result["gpu"]["name"].get<std::string>() + ", pinned" : std::string("host device"))
      << ", " << result["rounds"].get<std::size_t>() << " rounds of "
      << format_bytes(result["bytes"].get<std::uint64_t>()) << " each way, GB/s; beside "
      << (cuda ? "cudaMemcpyAsync" : "memcpy") << "\n"
      << "        copy  direction        rate     bare   rate / bare (MAD, worst)\n"
      << std::fixed;
  for (const nlohmann::json& row : result["rows"]) {
    const nlohmann::json& ratio = row["over_bare"];
    const auto rate = [&](const char* key) { return row[key]["median"].get<double>() / 1e9; };
    out << std::setw(12) << format_bytes(row["bytes"].get<std::uint64_t>()) << "  " << std::left << std::setw(12)
        << row["direction"].get<std::string>() << std::right << std::setprecision(2) << std::setw(9)
        << rate("bytes_per_second") << std::setw(9) << rate("bare_bytes_per_second") << std::setprecision(3)
        << std::setw(9) << ratio["median"].get<double>() << " (" << ratio["mad"].get<double>() << ", "
        << ratio["worst"].get<double>() << ")\n";
  }
  return out.str();
}

}  // namespace strata::bench
