#include "cuda/device_facts.h"

#include <array>
#include <cctype>
#include <fstream>
#include <optional>
#include <string>

namespace strata::cuda {
namespace {

// Nothing where this driver does not know the attribute.
std::optional<int> attribute(DeviceContext& context, cudaDeviceAttr which) {
  int value = 0;
  const cudaError_t error = cudaDeviceGetAttribute(&value, which, context.index());
  if (error == cudaErrorInvalidValue) {
    static_cast<void>(cudaGetLastError());  // taken back; see check()
    return std::nullopt;
  }
  context.check(error, "cudaDeviceGetAttribute");
  return value;
}

// As in /sys: "0000:3b:00.0".
std::string pci_bus_id(DeviceContext& context) {
  std::array<char, 32> id = {};
  context.check(cudaDeviceGetPCIBusId(id.data(), static_cast<int>(id.size()), context.index()),
                "cudaDeviceGetPCIBusId");
  std::string lower = id.data();
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

// What the system's PCI bus says, for drivers that do not.
int numa_node_of_slot(const std::string& folder) {
  std::ifstream file("/sys/bus/pci/devices/" + folder + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

// Two transfers a clock.
double memory_bytes_per_second(DeviceContext& context) {
  const double clock_hz = 1e3 * attribute(context, cudaDevAttrMemoryClockRate).value_or(0);
  return 2 * clock_hz * attribute(context, cudaDevAttrGlobalMemoryBusWidth).value_or(0) / 8;
}

}  // namespace

DeviceFacts read_facts(DeviceContext& context) {
  context.bind_thread();
  cudaDeviceProp properties = {};
  context.check(cudaGetDeviceProperties(&properties, context.index()), "cudaGetDeviceProperties");
  DeviceFacts facts;
  facts.index = context.index();
  facts.name = properties.name;
  facts.pci_bus_id = pci_bus_id(context);
  facts.major = properties.major;
  facts.minor = properties.minor;
  facts.multiprocessors = static_cast<std::size_t>(properties.multiProcessorCount);
  std::size_t available = 0;
  std::size_t total = 0;
  context.check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
  facts.total_bytes = total;
  facts.free_bytes = available;
  facts.memory_bytes_per_second = memory_bytes_per_second(context);
  context.check(cudaDriverGetVersion(&facts.driver_version), "cudaDriverGetVersion");
  context.check(cudaRuntimeGetVersion(&facts.runtime_version), "cudaRuntimeGetVersion");
  facts.numa_node = attribute(context, cudaDevAttrHostNumaId).value_or(-1);
  if (facts.numa_node < 0) facts.numa_node = numa_node_of_slot(facts.pci_bus_id);
  return facts;
}

}  // namespace strata::cuda
