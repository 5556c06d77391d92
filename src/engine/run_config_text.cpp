// What is written from the table: the resolved configuration, --help and the tables of docs/config.md.
#include <string>
#include <vector>

#include "engine/run_config.h"
#include "engine/run_config_table.h"

namespace strata::engine {
namespace {

constexpr std::size_t kHelpColumn = 44;
constexpr std::size_t kHelpWidth = 116;

std::string default_of(const Setting& setting) {
  return setting.get ? setting.get(RunConfig{}) : "";
}

bool is_shown(const Setting& setting) {
  return setting.shown == Setting::Shown::Yes;
}

// Writes the headers of the groups that `name` opens after `open`, and makes `open` the groups of `name`.
void open_groups(std::string_view name, std::vector<std::string_view>& open, std::string& out) {
  std::vector<std::string_view> groups;
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.')) {
    groups.push_back(name.substr(0, dot));
    name.remove_prefix(dot + 1);
  }
  std::size_t shared = 0;
  while (shared < std::min(open.size(), groups.size()) && open[shared] == groups[shared]) ++shared;
  for (std::size_t depth = shared; depth < groups.size(); ++depth) {
    out += std::string(2 * depth, ' ') + std::string(groups[depth]) + ":\n";
  }
  open = groups;
}

std::string flag_of(std::string_view name) {
  std::string flag = "--";
  for (const char c : name) flag += c == '_' ? '-' : c;
  return flag;
}

// Breaks at blanks; lines after the first are indented.
std::string wrapped(std::string_view text, std::size_t indent, std::size_t width) {
  std::string out;
  std::size_t column = indent;
  for_each_word(text, [&](std::string_view word) {
    if (column > indent && column + 1 + word.size() > width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  });
  return out;
}

std::string code(std::string_view text) {
  return text.empty() ? "" : "`" + std::string(text) + "`";
}

// A cell of a table: a bar would end it.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

std::string code_list(std::string_view words) {
  std::string out;
  for_each_word(words, [&](std::string_view word) { out += (out.empty() ? "" : ", ") + code(word); });
  return out;
}

}  // namespace

std::string to_yaml(const RunConfig& config) {
  std::string out;
  std::vector<std::string_view> open;
  const std::vector<Setting> settings = run_config_settings();
  for (const Setting& setting : settings) {
    if (!setting.get) continue;
    open_groups(setting.name, open, out);
    const std::string_view key = setting.name.substr(setting.name.rfind('.') + 1);
    out += std::string(2 * open.size(), ' ') + std::string(key) + ": " + setting.get(config) + "\n";
  }
  return out;
}

std::string run_config_help() {
  std::string out;
  std::string_view section;
  for (const Setting& setting : run_config_settings()) {
    if (!is_shown(setting)) continue;
    if (setting.section != section) {
      section = setting.section;
      out += (out.empty() ? "" : "\n") + std::string(section) + ":\n";
    }
    std::string left = "  " + flag_of(setting.name);
    left += left.size() + 2 > kHelpColumn ? "\n" + std::string(kHelpColumn, ' ')
                                          : std::string(kHelpColumn - left.size(), ' ');
    std::string right = std::string(setting.help) + " [" + setting.values + "]";
    if (setting.get) right += " (default " + default_of(setting) + ")";
    if (!setting.aliases.empty()) right += " Also: " + std::string(setting.aliases);
    out += left + wrapped(right, kHelpColumn, kHelpWidth) + "\n";
  }
  return out;
}

std::string run_config_markdown() {
  std::string out;
  std::string_view section;
  for (const Setting& setting : run_config_settings()) {
    if (!is_shown(setting)) continue;
    if (setting.section != section) {
      section = setting.section;
      out += "### " + std::string(section) + "\n\n| key | also | value | default | |\n|---|---|---|---|---|\n";
    }
    out += "| " + code(setting.name) + " | " + code_list(setting.aliases) + " | " + cell(setting.values) + " | " +
           code(default_of(setting)) + " | " + cell(setting.help) + " |\n";
  }
  out += "\n### Accepted with one value only\n\n| key | also | accepted | otherwise |\n|---|---|---|---|\n";
  for (const FixedKey& key : run_config_fixed_keys()) {
    out += "| " + code(key.name) + " | " + code_list(key.aliases) + " | " +
           (key.allowed.empty() ? "nothing" : code_list(key.allowed)) + " | " + std::string(key.advice) + " |\n";
  }
  return out;
}

}  // namespace strata::engine
