#include "fio.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>
#include <thread>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"

extern char** environ;

namespace strata::bench {
namespace {

// A file name as fio's options take it: a colon would begin another file.
std::string escaped(const std::filesystem::path& file) {
  std::string text;
  for (const char c : file.string()) {
    if (c == ':' || c == '\\') text += '\\';
    text += c;
  }
  return text;
}

std::vector<std::string> arguments_of(const FioJob& job, const std::filesystem::path& report) {
  const std::uint64_t share = job.bytes / job.files.size() / job.block_bytes * job.block_bytes;
  std::vector<std::string> arguments{
      "fio",
      "--output-format=json",
      "--output=" + report.string(),
      "--name=global",
      "--rw=" + job.pattern,
      "--size=" + std::to_string(share),
      "--bs=" + std::to_string(job.block_bytes),
      "--iodepth=" + std::to_string(job.queue_depth),
      "--ioengine=io_uring",
      "--direct=1",
      "--fixedbufs=1",
      "--registerfiles=1",
      "--thread=1",
      "--group_reporting=1",
      std::string("--mem=") + (fio_gets_huge_pages(job) ? "mmaphuge" : "mmap"),
      "--overwrite=1",  // else fio makes the file anew, and allocating blocks is measured on its side only
  };
  for (std::size_t i = 0; i < job.files.size(); ++i) {
    arguments.push_back("--name=yardstick" + std::to_string(i));
    arguments.push_back("--filename=" + escaped(job.files[i]));
  }
  return arguments;
}

void run_program(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, argv[0], nullptr, nullptr, argv.data(), environ);
  if (error != 0) throw IoError({error, "start", "fio", 0, 0, ""});
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) throw IoError({errno, "wait for", "fio", 0, 0, ""});
  }
  if (status != 0) throw IoError({0, "run", "fio", 0, 0, "fio ended with status " + std::to_string(status)});
}

// A line of /proc/meminfo; 0 when it is missing.
std::uint64_t meminfo(const std::string& key) {
  std::ifstream stream("/proc/meminfo");
  for (std::string line; std::getline(stream, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::strtoull(line.c_str() + key.size() + 1, nullptr, 10);
  }
  return 0;
}

}  // namespace

std::uint64_t fio_huge_pages(const FioJob& job) {
  const std::uint64_t page = meminfo("Hugepagesize") << 10;
  if (page == 0) return 0;
  // One page more for fio's own alignment.
  return (ceil_div(std::uint64_t{job.block_bytes} * job.queue_depth, page) + 1) * job.files.size();
}

bool fio_gets_huge_pages(const FioJob& job) {
  const std::uint64_t pages = fio_huge_pages(job);
  return pages > 0 && meminfo("HugePages_Free") - meminfo("HugePages_Rsvd") >= pages;
}

bool fio_available() {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((folder + "/fio").c_str(), X_OK) == 0) return true;
  }
  return false;
}

FioResult run_fio(const FioJob& job) {
  using Clock = std::chrono::steady_clock;
  const std::filesystem::path report = job.files.front().string() + ".json";
  const Clock::time_point start = Clock::now();
  run_program(arguments_of(job, report));
  const std::chrono::duration<double> whole = Clock::now() - start;
  std::ifstream stream(report);
  // fio may print notes before the document.
  std::string text(std::istreambuf_iterator<char>(stream), {});
  std::error_code ignored;  // the caller removes the folder as a whole
  std::filesystem::remove(report, ignored);
  const std::size_t begin = text.find('{');
  const nlohmann::json result = nlohmann::json::parse(begin == std::string::npos ? text : text.substr(begin));
  const nlohmann::json& done = result.at("jobs").at(0);
  const auto figure = [&done](const char* direction, const char* key) {
    return done.at(direction).at(key).get<double>();
  };
  const double runtime_ms = std::max(figure("read", "runtime"), figure("write", "runtime"));
  return {.bytes_per_second = figure("read", "bw_bytes") + figure("write", "bw_bytes"),
          .unused = whole - std::chrono::duration<double, std::milli>(runtime_ms)};
}

double RestedFio::run(const FioJob& job) {
  std::this_thread::sleep_for(idle_ - unused_);
  const FioResult result = run_fio(job);
  unused_ = result.unused;
  return result.bytes_per_second;
}

}  // namespace strata::bench
