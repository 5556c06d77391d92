// Between the text of a configuration and typed values. Private to src/engine/run_config*.cpp.
//
// Every read_value throws ConfigError that quotes the text and says what may stand there; it leaves `out` alone then.
// Every write_value gives one line of YAML that read_value turns into an equal value. syntax_of says what may be
// written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "engine/run_config.h"

namespace YAML {
class Node;
}

namespace strata::engine {

void read_value(const YAML::Node& node, std::string& out);
void read_value(const YAML::Node& node, std::filesystem::path& out);
void read_value(const YAML::Node& node, bool& out);          // true, false, yes, no, on, off
void read_value(const YAML::Node& node, std::int64_t& out);  // decimal; "5e8" where whole; "010" is 10
void read_value(const YAML::Node& node, double& out);        // finite
void read_value(const YAML::Node& node, AutoBytes& out);     // "auto" or what parse_bytes takes
void read_value(const YAML::Node& node, AutoCount& out);
void read_value(const YAML::Node& node, RecomputeChoice& out);  // auto, all, none, or a number
void read_value(const YAML::Node& node, AutoTier& out);
void read_value(const YAML::Node& node, LrKind& out);
void read_value(const YAML::Node& node, ReportTo& out);
void read_value(const YAML::Node& node, SaveStrategy& out);
void read_value(const YAML::Node& node, DeviceChoice& out);
void read_value(const YAML::Node& node, ComputeChoice& out);
void read_value(const YAML::Node& node, AccumulationChoice& out);
void read_value(const YAML::Node& node, UpdateSiteChoice& out);
void read_value(const YAML::Node& node, TravelCode& out);
void read_value(const YAML::Node& node, IoBackendChoice& out);
void read_value(const YAML::Node& node, OptimizerKind& out);
void read_value(const YAML::Node& node, MasterEncoding& out);
void read_value(const YAML::Node& node, MomentEncoding& out);
void read_value(const YAML::Node& node, ResumeConfig& out);
void read_value(const YAML::Node& node, std::vector<std::filesystem::path>& out);  // a list, or "a,b"
void read_value(const YAML::Node& node, std::vector<std::string>& out);            // likewise
void read_value(const YAML::Node& node, std::vector<DatasetConfig>& out);  // a path, or a list of paths and of maps

std::string write_value(const std::string& value);
std::string write_value(const std::filesystem::path& value);
std::string write_value(bool value);
std::string write_value(std::int64_t value);
std::string write_value(double value);
std::string write_value(const AutoBytes& value);
std::string write_value(const AutoCount& value);
std::string write_value(const RecomputeChoice& value);
std::string write_value(const AutoTier& value);
std::string write_value(LrKind value);
std::string write_value(ReportTo value);
std::string write_value(SaveStrategy value);
std::string write_value(DeviceChoice value);
std::string write_value(ComputeChoice value);
std::string write_value(AccumulationChoice value);
std::string write_value(UpdateSiteChoice value);
std::string write_value(TravelCode value);
std::string write_value(IoBackendChoice value);
std::string write_value(OptimizerKind value);
std::string write_value(MasterEncoding value);
std::string write_value(MomentEncoding value);
std::string write_value(const ResumeConfig& value);
std::string write_value(const std::vector<std::filesystem::path>& value);
std::string write_value(const std::vector<std::string>& value);
std::string write_value(const std::vector<DatasetConfig>& value);

std::string syntax_of(const std::string&);
std::string syntax_of(const std::filesystem::path&);
std::string syntax_of(bool);
std::string syntax_of(std::int64_t);
std::string syntax_of(double);
std::string syntax_of(const AutoBytes&);
std::string syntax_of(const AutoCount&);
std::string syntax_of(const RecomputeChoice&);
std::string syntax_of(const AutoTier&);
std::string syntax_of(LrKind);
std::string syntax_of(ReportTo);
std::string syntax_of(SaveStrategy);
std::string syntax_of(DeviceChoice);
std::string syntax_of(ComputeChoice);
std::string syntax_of(AccumulationChoice);
std::string syntax_of(UpdateSiteChoice);
std::string syntax_of(TravelCode);
std::string syntax_of(IoBackendChoice);
std::string syntax_of(OptimizerKind);
std::string syntax_of(MasterEncoding);
std::string syntax_of(MomentEncoding);
std::string syntax_of(const ResumeConfig&);
std::string syntax_of(const std::vector<std::filesystem::path>&);
std::string syntax_of(const std::vector<std::string>&);
std::string syntax_of(const std::vector<DatasetConfig>&);

// The text of a scalar without surrounding blanks. Throws: ConfigError for a list or a map.
std::string scalar_text(const YAML::Node& node);
std::string to_lower(std::string_view text);
std::string in_quotes(std::string_view text);
bool is_auto(std::string_view text);  // "auto" in any case

}  // namespace strata::engine
