#include "fio.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>
#include <vector>

#include "core/error.h"

extern char** environ;

namespace strata::bench {
namespace {

std::vector<std::string> arguments_of(const FioJob& job, const std::filesystem::path& report) {
  return {"fio",
          "--name=yardstick",
          "--filename=" + job.file.string(),
          "--rw=" + job.pattern,
          "--size=" + std::to_string(job.bytes),
          "--bs=" + std::to_string(job.block_bytes),
          "--iodepth=" + std::to_string(job.queue_depth),
          "--ioengine=io_uring",
          "--direct=1",
          "--fixedbufs=1",
          "--registerfiles=1",
          "--thread=1",
          std::string("--mem=") + (fio_gets_huge_pages(job.block_bytes, job.queue_depth) ? "mmaphuge" : "mmap"),
          "--overwrite=1",  // else fio makes the file anew, and allocating blocks is measured on its side only
          "--output-format=json",
          "--output=" + report.string()};
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

bool fio_gets_huge_pages(std::size_t block_bytes, unsigned queue_depth) {
  const std::uint64_t page = meminfo("Hugepagesize") << 10;
  // One page more for fio's own alignment.
  return page > 0 && meminfo("HugePages_Free") * page >= std::uint64_t{block_bytes} * queue_depth + 2 * page;
}

bool fio_available() {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((folder + "/fio").c_str(), X_OK) == 0) return true;
  }
  return false;
}

double run_fio(const FioJob& job) {
  const std::filesystem::path report = job.file.string() + ".json";
  run_program(arguments_of(job, report));
  std::ifstream stream(report);
  // fio may print notes before the document.
  std::string text(std::istreambuf_iterator<char>(stream), {});
  std::error_code ignored;  // the caller removes the folder as a whole
  std::filesystem::remove(report, ignored);
  const std::size_t begin = text.find('{');
  const nlohmann::json result = nlohmann::json::parse(begin == std::string::npos ? text : text.substr(begin));
  const nlohmann::json& done = result.at("jobs").at(0);
  return done.at("read").at("bw_bytes").get<double>() + done.at("write").at("bw_bytes").get<double>();
}

}  // namespace strata::bench
