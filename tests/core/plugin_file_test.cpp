#include "core/plugin_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace strata {
namespace {

constexpr const char* kVariable = "STRATA_PLUGIN_FILE_TEST";

class PluginFile : public ::testing::Test {
 protected:
  void TearDown() override { ::unsetenv(kVariable); }
};

TEST_F(PluginFile, TheVariableComesFirst) {
  ASSERT_EQ(::setenv(kVariable, "/somewhere/else.so", 1), 0);
  EXPECT_EQ(plugin_file(kVariable, "name.so"), "/somewhere/else.so");
}

TEST_F(PluginFile, AnEmptyVariableIsNone) {
  ASSERT_EQ(::setenv(kVariable, "", 1), 0);
  EXPECT_EQ(plugin_file(kVariable, "no-such-library.so"), "no-such-library.so");
}

TEST_F(PluginFile, TheFolderBesideTheProgramComesBeforeTheLoader) {
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "lib";
  const std::string name = "strata-plugin-file-test-" + std::to_string(::getpid()) + ".so";
  const bool made = std::filesystem::create_directory(folder);
  std::ofstream(folder / name).flush();

  const std::string found = plugin_file(kVariable, name.c_str());

  std::filesystem::remove(folder / name);
  if (made) std::filesystem::remove(folder);
  EXPECT_EQ(found, (folder / name).string());
}

}  // namespace
}  // namespace strata
