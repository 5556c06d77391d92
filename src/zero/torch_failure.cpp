#include "zero/torch_failure.h"

#include <c10/util/Exception.h>

#include <new>
#include <string>
#include <string_view>

#include "core/bytes.h"
#include "core/error.h"

namespace strata::zero {
namespace {

constexpr int kMemoryAllocation = 2;  // cudaErrorMemoryAllocation

// Torch's first line: the others tell how to debug torch.
std::string cause_of(const c10::Error& error) {
  const std::string_view text = error.what_without_backtrace();
  return std::string(text.substr(0, text.find('\n')));
}

// Of checks around calls of the libraries, which throw the type of every other check.
bool names_cuda(std::string_view text) {
  return text.starts_with("CUDA") || text.starts_with("cuBLAS") || text.starts_with("cuDNN");
}

[[noreturn]] void throw_tensors_do_not_fit(const c10::Error& error, std::uint64_t planned_bytes) {
  throw OutOfBudget("torch needs more memory on the GPU than the " + format_bytes(planned_bytes) +
                        " that the plan assumes for activations and kept graphs (" + cause_of(error) +
                        "). Lower the batch size (per_device_train_batch_size) or max_seq_length, or keep fewer "
                        "graphs (strata.recompute: all). Where the GPU itself is full: lower strata.budgets.device, or "
                        "end what else uses it",
                    planned_bytes, planned_bytes);
}

[[noreturn]] void throw_no_room_beside(const c10::Error& error, std::uint64_t planned_bytes) {
  throw OutOfBudget("the GPU has no memory left for what CUDA and torch load beside the budget (" + cause_of(error) +
                        "). Lower strata.budgets.device or end what else uses the GPU",
                    planned_bytes, planned_bytes);
}

[[noreturn]] void throw_device_failed(const c10::Error& error) {
  throw DeviceError("the GPU failed under torch: " + cause_of(error));
}

}  // namespace

void with_torch_failures(const std::function<void()>& work, std::uint64_t planned_bytes) {
  try {
    work();
  } catch (const c10::OutOfMemoryError& error) {
    throw_tensors_do_not_fit(error, planned_bytes);
  } catch (const c10::AcceleratorError& error) {
    if (error.get_error_code() == kMemoryAllocation) throw_no_room_beside(error, planned_bytes);
    throw_device_failed(error);
  } catch (const c10::Error& error) {
    const std::string cause = cause_of(error);
    if (!names_cuda(cause)) throw;
    if (cause.find("ALLOC_FAILED") != std::string::npos) throw_no_room_beside(error, planned_bytes);
    throw_device_failed(error);
  } catch (const std::bad_alloc&) {
    throw OutOfBudget(
        "the machine has no memory left for torch's tensors, though the budget has: end what else runs here, or lower "
        "strata.budgets.device and strata.budgets.host, the batch size or max_seq_length",
        planned_bytes, 0);
  }
}

}  // namespace strata::zero
