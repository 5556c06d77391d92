// TamperingIoBackend: a backend that does something else than it was asked, and says that all went well.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "nvme/io_backend.h"

namespace strata::test {

class TamperingIoBackend final : public nvme::IoBackend {
 public:
  enum class Verdict { Perform, Lose };
  // Looks at each request, on the queue's thread, and may change it. Lose: it is not performed but reported as done.
  using Tamper = std::function<Verdict(nvme::IoRequest&)>;

  TamperingIoBackend(std::unique_ptr<nvme::IoBackend> inner, Tamper tamper)
      : inner_(std::move(inner)), tamper_(std::move(tamper)) {}

  std::string_view name() const override { return "tampering"; }

  void submit(const nvme::IoRequest& request) override {
    nvme::IoRequest changed = request;
    if (tamper_(changed) == Verdict::Perform) {
      inner_->submit(changed);
    } else {
      lost_.push_back({request.token, static_cast<std::int64_t>(request.bytes)});
    }
  }

  std::size_t complete(std::span<nvme::IoCompletion> out) override {
    if (lost_.empty()) return inner_->complete(out);
    out[0] = lost_.back();
    lost_.pop_back();
    return 1;
  }

  void wake() override { inner_->wake(); }

 private:
  const std::unique_ptr<nvme::IoBackend> inner_;
  const Tamper tamper_;
  std::vector<nvme::IoCompletion> lost_;
};

}  // namespace strata::test
