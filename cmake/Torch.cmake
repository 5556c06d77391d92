# LibTorch from the pinned PyPI wheel, linked by path: find_package(Torch) of the CUDA wheel is a hard error where no CUDA
# toolkit is installed, and would pull the CUDA libraries into every process. Only the CPU libraries are linked here.
execute_process(
  COMMAND ${STRATA_PYTHON} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
  OUTPUT_VARIABLE STRATA_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE found)
if(NOT found EQUAL 0)
  message(FATAL_ERROR "no torch package in ${STRATA_PYTHON}: run `make setup`, or configure with -DSTRATA_WITH_TORCH=OFF")
endif()
message(STATUS "LibTorch: ${STRATA_TORCH_DIR}")

add_library(torch_host INTERFACE)
target_include_directories(torch_host SYSTEM INTERFACE ${STRATA_TORCH_DIR}/include
                           ${STRATA_TORCH_DIR}/include/torch/csrc/api/include)
target_compile_definitions(torch_host INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
target_link_directories(torch_host INTERFACE ${STRATA_TORCH_DIR}/lib)
target_link_libraries(torch_host INTERFACE ${STRATA_TORCH_DIR}/lib/libtorch_cpu.so ${STRATA_TORCH_DIR}/lib/libc10.so)
set(CMAKE_BUILD_RPATH ${STRATA_TORCH_DIR}/lib)
