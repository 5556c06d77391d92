#include "cli/nproc.h"

#include <charconv>
#include <string>
#include <string_view>

#include "core/error.h"

namespace strata::cli {
namespace {

constexpr std::size_t kMostRanks = 65536;

std::size_t ranks_from(const std::string& option, std::string_view text) {
  std::size_t ranks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  if (error != std::errc() || end != text.data() + text.size() || ranks < 1 || ranks > kMostRanks) {
    throw ConfigError(option + " takes a number of ranks from 1 to " + std::to_string(kMostRanks) + ", got \"" +
                      std::string(text) + "\"");
  }
  return ranks;
}

void refuse_inside_a_job(const Environment& environment) {
  std::string set;
  for (const std::string_view name : {"RANK", "WORLD_SIZE"}) {
    const auto found = environment.find(name);
    if (found != environment.end()) set += (set.empty() ? "" : ", ") + found->first + "=" + found->second;
  }
  if (set.empty() && rank_from_environment(environment).world > 1) set = "the variables of mpirun or srun";
  if (set.empty()) return;
  throw ConfigError("--nproc starts ranks, but this process is one already (" + set +
                    "): leave out --nproc, or unset what made it a rank");
}

}  // namespace

std::optional<std::size_t> take_ranks(Arguments& arguments, const std::string& option) {
  std::optional<std::size_t> ranks;
  for (auto word = arguments.begin(); word != arguments.end();) {
    std::string value;
    auto after = word + 1;
    if (*word == option) {
      if (after == arguments.end()) throw ConfigError(option + " needs a number of ranks");
      value = *after++;
    } else if (word->starts_with(option + "=")) {
      value = word->substr(option.size() + 1);
    } else {
      ++word;
      continue;
    }
    if (ranks) throw ConfigError(option + " was given twice");
    ranks = ranks_from(option, value);
    word = arguments.erase(word, after);
  }
  return ranks;
}

std::optional<std::size_t> take_nproc(Arguments& arguments, const Environment& environment) {
  const std::optional<std::size_t> ranks = take_ranks(arguments, "--nproc");
  if (ranks) refuse_inside_a_job(environment);
  return ranks;
}

}  // namespace strata::cli
