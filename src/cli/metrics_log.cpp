#include "cli/metrics_log.h"

#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace strata::cli {
namespace {

using Json = nlohmann::ordered_json;  // a reader of the file sees the keys in the documented order

Json finite(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json to_json(const engine::TierBytes& bytes) {
  return {{"device", bytes.device}, {"host", bytes.host}, {"nvme", bytes.nvme}};
}

Json to_json(const engine::StepSeconds& seconds) {
  Json object = {{"forward", seconds.forward},
                 {"backward", seconds.backward},
                 {"optimizer", seconds.optimizer},
                 {"stall", seconds.stall}};
  if (seconds.stall_nvme) object["stall_nvme"] = *seconds.stall_nvme;
  if (seconds.stall_link) object["stall_link"] = *seconds.stall_link;
  if (seconds.stall_comm) object["stall_comm"] = *seconds.stall_comm;
  if (seconds.nvme_busy) object["nvme_busy"] = *seconds.nvme_busy;
  if (seconds.comm) object["comm"] = *seconds.comm;
  return object;
}

Json to_json(const engine::StepTraffic& bytes) {
  Json object = {
      {"nvme_read", bytes.nvme_read}, {"nvme_written", bytes.nvme_written}, {"h2d", bytes.h2d}, {"d2h", bytes.d2h}};
  if (bytes.comm_sent) object["comm_sent"] = *bytes.comm_sent;
  return object;
}

}  // namespace

std::string to_json_line(const engine::StepReport& report) {
  Json line = {{"step", report.step},
               {"epoch", finite(report.epoch)},
               {"loss", finite(report.loss)},
               {"learning_rate", finite(report.learning_rate)},
               {"grad_norm", finite(report.grad_norm)},
               {"tokens", report.tokens},
               {"tokens_per_second", finite(report.tokens_per_second())},
               {"step_seconds", finite(report.step_seconds)},
               {"seconds", to_json(report.seconds)},
               {"bytes", to_json(report.bytes)},
               {"peak_bytes", to_json(report.peak_bytes)},
               {"rss_bytes", report.rss_bytes},
               {"skipped_steps", report.skipped_steps}};
  if (report.loss_scale) line["loss_scale"] = *report.loss_scale;
  if (report.tflops) line["tflops"] = finite(*report.tflops);
  if (report.ideal_seconds) {
    line["ideal_seconds"] = finite(*report.ideal_seconds);
    if (report.step_seconds > 0) line["ideal_fraction"] = finite(*report.ideal_seconds / report.step_seconds);
  }
  if (report.nvme_written_total > 0) line["nvme_written_total"] = report.nvme_written_total;
  if (!report.binding_link.empty()) line["binding_link"] = report.binding_link;
  return line.dump();
}

std::string to_json_line(const engine::EvalReport& report) {
  return Json{{"step", report.step},
              {"epoch", finite(report.epoch)},
              {"eval_loss", finite(report.loss)},
              {"eval_perplexity", finite(std::exp(report.loss))},
              {"eval_tokens", report.tokens},
              {"eval_seconds", finite(report.seconds)}}
      .dump();
}

// Every line was flushed and checked when it was written, so closing has nothing left to fail at.
void MetricsLog::Close::operator()(std::FILE* file) const noexcept {
  std::fclose(file);
}

void MetricsLog::fail(const char* op) const {
  throw IoError(
      {.errno_value = errno, .op = op, .path = path_.string(), .hint = "check the space and rights of output_dir"});
}

MetricsLog::MetricsLog(const std::filesystem::path& output_dir)
    : path_(output_dir / "metrics.jsonl"), file_(std::fopen(path_.c_str(), "a+e")) {
  if (!file_) fail("open");
  if (std::fseek(file_.get(), 0, SEEK_END) != 0) fail("seek");
  const long bytes = std::ftell(file_.get());
  if (bytes < 0) fail("tell");
  if (bytes == 0) return;
  if (std::fseek(file_.get(), -1, SEEK_END) != 0) fail("seek");
  const int last = std::fgetc(file_.get());
  if (last == EOF) fail("read");
  // Between a read and a write the C library asks for a change of position.
  if (std::fseek(file_.get(), 0, SEEK_END) != 0) fail("seek");
  if (last != '\n') append_line("");
}

void MetricsLog::append_line(std::string line) {
  line += '\n';
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size()) fail("write");
  if (std::fflush(file_.get()) != 0) fail("write");
}

}  // namespace strata::cli
