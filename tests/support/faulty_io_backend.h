// FaultyIoBackend: passes requests on to a real backend and makes them short, interrupted, late, reordered or failed.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "nvme/io_backend.h"

namespace strata::test {

// Probabilities per request, out of 1000.
struct IoFaults {
  std::uint64_t seed = 1;
  unsigned short_per_mille = 0;         // only a part is really moved
  unsigned under_report_per_mille = 0;  // of short ones: the result is smaller still, and not aligned
  unsigned eagain_per_mille = 0;
  unsigned eintr_per_mille = 0;
  unsigned eio_per_mille = 0;
  unsigned enospc_per_mille = 0;   // of writes
  bool shuffle = false;            // completions come late and in another order
  std::size_t granularity = 4096;  // short transfers are multiples of this, as direct I/O asks
};

class FaultyIoBackend final : public nvme::IoBackend {
 public:
  FaultyIoBackend(std::unique_ptr<nvme::IoBackend> inner, IoFaults faults)
      : inner_(std::move(inner)), faults_(faults), random_(faults.seed) {}

  std::string_view name() const override { return "faulty"; }

  void submit(const nvme::IoRequest& request) override {
    if (roll(faults_.eagain_per_mille)) return refuse(request, EAGAIN);
    if (roll(faults_.eintr_per_mille)) return refuse(request, EINTR);
    if (roll(faults_.eio_per_mille)) return refuse(request, EIO);
    if (request.op == nvme::IoOp::Write && roll(faults_.enospc_per_mille)) return refuse(request, ENOSPC);
    nvme::IoRequest passed = request;
    if (request.bytes > faults_.granularity && roll(faults_.short_per_mille)) {
      const std::size_t units = (request.bytes - 1) / faults_.granularity;
      passed.bytes = (1 + random_() % units) * faults_.granularity;
      if (roll(faults_.under_report_per_mille)) under_reported_.push_back(request.token);
    }
    ++in_flight_;
    inner_->submit(passed);
  }

  std::size_t complete(std::span<nvme::IoCompletion> out) override {
    for (;;) {
      const std::size_t released = release(out);
      if (released > 0) return released;
      std::vector<nvme::IoCompletion> fresh(out.size());
      const std::size_t count = inner_->complete(fresh);
      if (count == 0) return 0;
      in_flight_ -= count;
      for (std::size_t i = 0; i < count; ++i) held_.push_back(tampered(fresh[i]));
    }
  }

  void wake() override { inner_->wake(); }

 private:
  bool roll(unsigned per_mille) { return per_mille > 0 && random_() % 1000 < per_mille; }
  void refuse(const nvme::IoRequest& request, int error) { held_.push_back({request.token, -error}); }

  nvme::IoCompletion tampered(nvme::IoCompletion completion) {
    const auto found = std::find(under_reported_.begin(), under_reported_.end(), completion.token);
    if (found == under_reported_.end()) return completion;
    under_reported_.erase(found);
    if (completion.result > 1) completion.result -= static_cast<std::int64_t>(1 + random_() % 511) % completion.result;
    return completion;
  }

  // Moves some of the held completions to `out`; at least one when nothing else could end the wait.
  std::size_t release(std::span<nvme::IoCompletion> out) {
    if (faults_.shuffle) std::shuffle(held_.begin(), held_.end(), random_);
    std::size_t count = 0;
    while (!held_.empty() && count < out.size()) {
      const bool must = in_flight_ == 0 && count == 0;
      if (faults_.shuffle && !must && random_() % 2 == 0) break;
      out[count++] = held_.back();
      held_.pop_back();
    }
    return count;
  }

  std::unique_ptr<nvme::IoBackend> inner_;
  const IoFaults faults_;
  std::mt19937_64 random_;
  std::vector<nvme::IoCompletion> held_;
  std::vector<std::uint64_t> under_reported_;
  std::size_t in_flight_ = 0;  // in inner_
};

}  // namespace strata::test
