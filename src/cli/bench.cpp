// strata bench: one question each, against the limit of this machine.
#include <iostream>

#include <CLI/CLI.hpp>

#include "bench/bench_adam.h"
#include "bench/bench_cuda_adam.h"
#include "bench/bench_device.h"
#include "bench/bench_hide.h"
#include "bench/bench_link.h"
#include "bench/bench_nvme.h"
#include "bench/bench_update.h"
#include "bench/shared_drive.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/exit_code.h"
#include "core/bytes.h"
#include "core/error.h"
#include "engine/model_size.h"

namespace strata::cli {
namespace {

constexpr const char* kHelp = R"(usage: strata bench adam|hide|link|nvme|update|step [options] [--json]

  adam    fused AdamW, of the CPU or with --device cuda, against the rate at which memory moves the same bytes
  hide    from how many tokens on a step hides its update: a forecast for a described machine
  link    copies between host and device, each way and both at once, beside plain ones
  nvme    the NVMe store, read, write and mixed, beside fio when it is installed
  update  the optimizer's update with its states on NVMe, beside fio moving the same bytes
  step    a training step on NVMe beside the same step in memory; with --config those of a run

`strata bench adam --help` lists the options of each.
)";

template <typename Print>
void show(const nlohmann::json& result, bool json, Print print) {
  std::cout << (json ? result.dump(2) + "\n" : print(result));
}

int bench_adam(const Arguments& arguments) {
  CLI::App app("Fused AdamW (bf16 gradient in, bf16 parameter out) against the memory ceiling of its device.",
               "bench adam");
  bench::AdamBenchOptions options;
  std::string device = "host";
  bool json = false;
  app.add_option("--device", device, "host (default) or cuda: the optimizer of the first GPU")
      ->check(CLI::IsMember({"host", "cuda"}));
  app.add_option("--numel", options.numel, "parameters; 16 bytes each are allocated")->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "0: all usable CPUs");
  app.add_option("--rounds", options.rounds, "measurements of each")->check(CLI::PositiveNumber);
  app.add_option("--states", options.states, "encodings, one or several with commas, measured in the same rounds")
      ->delimiter(',')
      ->check(CLI::IsMember(bench::adam_bench_states()));
  app.add_flag("--json", json, "print one JSON object");
  if (!parse_options(app, arguments)) return kDone;
  if (device == "cuda") {
    show(bench::run_cuda_adam_bench(options), json, bench::format_cuda_adam_bench);
  } else {
    show(bench::run_adam_bench(options), json, bench::format_adam_bench);
  }
  return kDone;
}

int bench_link(const Arguments& arguments) {
  CLI::App app(
      "Copies between pinned host memory and a device, each way and both at once, beside the same copies by plain "
      "cudaMemcpyAsync; with the host as device beside memcpy.",
      "bench link");
  bench::LinkBenchOptions options;
  std::vector<std::string> sizes;
  std::string bytes;
  bool json = false;
  app.add_option("--device", options.device, "auto (default: a GPU where there is one), host, cuda")
      ->check(CLI::IsMember(bench::bench_devices()));
  app.add_option("--sizes", sizes, "of one copy, one or several with commas (default 64KiB,1MiB,16MiB,128MiB)")
      ->delimiter(',');
  app.add_option("--bytes", bytes, "moved each way per measurement (default 256MiB)");
  app.add_option("--rounds", options.rounds, "measurements of each")->check(CLI::PositiveNumber);
  app.add_flag("--json", json, "print one JSON object");
  if (!parse_options(app, arguments)) return kDone;
  if (!bytes.empty()) options.bytes = parse_bytes(bytes);
  if (!sizes.empty()) options.sizes.clear();
  for (const std::string& size : sizes) options.sizes.push_back(parse_bytes(size));
  show(bench::run_link_bench(options), json, bench::format_link_bench);
  return kDone;
}

int bench_hide(const Arguments& arguments) {
  CLI::App app(
      "Tokens a step from which it takes at most 1.1 times its computing, for every encoding, home and update site. A "
      "forecast: nothing is measured.",
      "bench hide");
  bench::HideBenchOptions options;
  std::string model;
  bool json = false;
  // In the units of data sheets.
  double teraflops = options.machine.flops / 1e12;
  double dram = options.machine.dram / 1e9, link = options.machine.link / 1e9;
  double read = options.machine.drive_read / 1e9, write = options.machine.drive_write / 1e9;
  double gpu = options.machine.gpu_bytes / 1e9, ram = options.machine.ram_bytes / 1e9;
  double gpu_reserve = options.machine.gpu_reserve / 1e9, ram_reserve = options.machine.ram_reserve / 1e9;
  app.add_option("--model", model, "folder with a config.json (default: Llama 7B)")->check(CLI::ExistingDirectory);
  app.add_option("--teraflops", teraflops, "of the GPU, reached (150)")->check(CLI::PositiveNumber);
  app.add_option("--dram", dram, "GB/s of the memory (60)")->check(CLI::PositiveNumber);
  app.add_option("--link", link, "GB/s between host and GPU, each way (25)")->check(CLI::PositiveNumber);
  app.add_option("--drive-read", read, "GB/s (7)")->check(CLI::PositiveNumber);
  app.add_option("--drive-write", write, "GB/s, past the drive's cache (6)")->check(CLI::PositiveNumber);
  app.add_flag("--half-duplex", options.machine.half_duplex, "the drive's reads and writes take turns");
  app.add_option("--gpu-memory", gpu, "GB (24)")->check(CLI::PositiveNumber);
  app.add_option("--gpu-reserve", gpu_reserve, "GB of it for activations (8)")->check(CLI::NonNegativeNumber);
  app.add_option("--ram", ram, "GB (32)")->check(CLI::PositiveNumber);
  app.add_option("--ram-reserve", ram_reserve, "GB of it for the system and passing pages (4)")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("!--no-recompute", options.recompute, "activations are kept");
  app.add_flag("--json", json, "print one JSON object");
  if (!parse_options(app, arguments)) return kDone;
  options.machine = {
      teraflops * 1e12, dram * 1e9, link * 1e9,        read * 1e9,       write * 1e9, options.machine.half_duplex,
      gpu * 1e9,        ram * 1e9,  gpu_reserve * 1e9, ram_reserve * 1e9};
  if (!model.empty()) {
    const engine::ModelSize size = engine::model_size(model);
    options.model = {static_cast<double>(size.parameters), static_cast<double>(size.first_group),
                     static_cast<double>(size.largest_group)};
  }
  show(bench::run_hide_bench(options), json, bench::format_hide_bench);
  return kDone;
}

int bench_nvme(const Arguments& arguments) {
  CLI::App app("Read, write and mixed rate of the NVMe store in a folder, beside fio when it is installed.",
               "bench nvme");
  bench::NvmeBenchOptions options;
  std::string bytes;
  std::string block_bytes;
  std::size_t processes = 1;
  bool json = false;
  app.add_option("--dir", options.dirs, "an existing folder on the drive; given again: one on another, striped")
      ->required()
      ->allow_extra_args(false);
  app.add_option("--bytes", bytes, "moved per measurement, e.g. 256MiB");
  app.add_option("--block-bytes", block_bytes, "largest request, e.g. 1MiB");
  app.add_option("--queue-depth", options.queue_depth, "requests in flight per drive")->check(CLI::PositiveNumber);
  app.add_option("--rounds", options.rounds, "measurements of each")->check(CLI::PositiveNumber);
  app.add_flag("!--no-fio", options.with_fio, "leave fio out");
  app.add_option("--processes", processes, "several: what they get of one drive, with its queue depth shared and not")
      ->check(CLI::Range(1, 64));
  app.add_flag("--json", json, "print one JSON object");
  if (!parse_options(app, arguments)) return kDone;
  if (!bytes.empty()) options.bytes = parse_bytes(bytes);
  if (!block_bytes.empty()) options.block_bytes = parse_bytes(block_bytes);
  if (processes > 1) {
    if (options.dirs.size() > 1) throw ConfigError("bench nvme: --processes compares on one --dir");
    const bench::SharedDriveBenchOptions shared{.dir = options.dirs.front(),
                                                .processes = processes,
                                                .bytes = options.bytes,
                                                .block_bytes = options.block_bytes,
                                                .queue_depth = options.queue_depth,
                                                .rounds = options.rounds};
    show(bench::run_shared_drive_bench(shared), json, bench::format_shared_drive_bench);
    return kDone;
  }
  show(bench::run_nvme_bench(options), json, bench::format_nvme_bench);
  return kDone;
}

int bench_update(const Arguments& arguments) {
  CLI::App app("The optimizer's update with its states on NVMe, beside fio moving as many bytes.", "bench update");
  bench::UpdateBenchOptions options;
  std::string slot_bytes;
  bool json = false;
  app.add_option("--dir", options.dir, "an existing folder on the drive")->required();
  app.add_option("--numel", options.numel, "parameters; 28 bytes of disk and 4 of memory each")
      ->check(CLI::PositiveNumber);
  app.add_option("--states", options.states, "encodings, one or several with commas")
      ->delimiter(',')
      ->check(CLI::IsMember(bench::adam_bench_states()));
  app.add_option("--cached", options.cached, "shares of the states that stay in memory, one or several with commas")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--page", slot_bytes, "bytes of a page, e.g. 4MiB");
  app.add_option("--threads", options.threads, "0: all usable CPUs");
  app.add_option("--rounds", options.rounds, "measurements of each")->check(CLI::PositiveNumber);
  app.add_flag("!--no-fio", options.with_fio, "leave fio out");
  app.add_flag("--json", json, "print one JSON object");
  if (!parse_options(app, arguments)) return kDone;
  if (!slot_bytes.empty()) options.slot_bytes = parse_bytes(slot_bytes);
  show(bench::run_update_bench(options), json, bench::format_update_bench);
  return kDone;
}

}  // namespace

int run_bench(const Arguments& arguments) {
  if (arguments.empty() || arguments.front() == "--help" || arguments.front() == "-h") {
    std::cout << kHelp;
    return arguments.empty() ? kUsage : kDone;
  }
  const Arguments rest(arguments.begin() + 1, arguments.end());
  if (arguments.front() == "adam") return bench_adam(rest);
  if (arguments.front() == "hide") return bench_hide(rest);
  if (arguments.front() == "link") return bench_link(rest);
  if (arguments.front() == "nvme") return bench_nvme(rest);
  if (arguments.front() == "update") return bench_update(rest);
  if (arguments.front() == "step") return run_bench_step(rest);
  throw ConfigError("unknown bench " + arguments.front() + "; there are adam, hide, link, nvme, update and step");
}

}  // namespace strata::cli
