#include "core/host_device.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "core/bytes.h"
#include "core/error.h"
#include "core/log.h"
#include "core/page_mapping.h"
#include "core/queued_stream.h"

namespace strata {
namespace {

// Sleeps before each piece of work of an adversarial stream, so that code which forgot to wait reads what is not there.
class Lateness {
 public:
  explicit Lateness(std::uint64_t seed) : random_(seed) {}

  void sleep() {
    const bool long_one = std::uniform_int_distribution<int>(0, 63)(random_) == 0;
    const auto microseconds = long_one ? 2000 : std::uniform_int_distribution<int>(0, 200)(random_);
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  }

 private:
  std::mt19937_64 random_;
};

// An adversarial stream's way to work.
class AdversarialWork final : public StreamWork {
 public:
  AdversarialWork(std::string name, std::uint64_t seed) : name_(std::move(name)), lateness_(seed) {}

  void before_each() override { lateness_.sleep(); }
  void check_wait(const Event& event) override {
    STRATA_EXPECTS(event.submitted(), "stream " + name_ + " waits for an event that nobody has submitted yet");
  }

 private:
  const std::string name_;
  Lateness lateness_;
};

}  // namespace

HostDevice::HostDevice(std::uint64_t budget_bytes, HostDeviceOptions options)
    : budget_("device memory", budget_bytes), options_(options) {}

HostDevice::~HostDevice() {
  if (budget_.used() == 0) return;
  log::error("the host device ends while buffers of " + format_bytes(budget_.used()) + " still exist");
}

std::unique_ptr<Stream> HostDevice::create_stream(std::string name) {
  // relaxed: the number only tells the random sequences of the streams apart.
  const std::uint64_t index = streams_created_.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t seed = options_.seed * 0x9e3779b97f4a7c15U + index;
  auto work = std::make_unique<StreamWork>();
  if (options_.mode == HostDeviceOptions::Mode::Adversarial) work = std::make_unique<AdversarialWork>(name, seed);
  return std::make_unique<QueuedStream>(std::move(name), std::move(work));
}

Buffer HostDevice::allocate(std::size_t bytes, MemoryTag tag) {
  if (bytes == 0) return Buffer();
  const std::size_t mapped = whole_pages(bytes);
  const bool poison = options_.mode == HostDeviceOptions::Mode::Adversarial;
  Reservation reservation = budget_.reserve(mapped, tag);
  std::byte* const memory = map_pages(mapped);
  // 0xff everywhere is a NaN in every floating-point type: reading what was never written, or was freed, shows.
  if (poison) std::memset(memory, 0xff, mapped);
  return Buffer(memory, bytes, MemorySpace::Device, std::move(reservation),
                [mapped, poison](std::byte* data, std::size_t) {
                  if (poison) std::memset(data, 0xff, mapped);
                  unmap_pages(data, mapped);
                });
}

}  // namespace strata
