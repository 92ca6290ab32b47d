# Stock llama.cpp, as scripts/get-stock.sh keeps it. GAAC_STOCK_FOUND tells whether it is there; then
# the target `stock_llama` brings its public headers and libraries, and GAAC_STOCK_DIR has the programs
# in bin/. Nothing that is installed needs it: only the demo and the integration tests do.
set(GAAC_STOCK_DIR "${CMAKE_SOURCE_DIR}/build/deps/stock" CACHE PATH "Build tree of stock llama.cpp")
set(GAAC_STOCK_SOURCE "${CMAKE_SOURCE_DIR}/build/deps/stock-source" CACHE PATH "Source tree of stock llama.cpp")
set(GAAC_MODEL "${CMAKE_SOURCE_DIR}/build/deps/smollm2.gguf" CACHE FILEPATH "Model that the demo and the tests run")

set(GAAC_STOCK_FOUND FALSE)
if(NOT CMAKE_CROSSCOMPILING AND EXISTS "${GAAC_STOCK_DIR}/bin/libllama.so" AND EXISTS "${GAAC_STOCK_SOURCE}/include/llama.h")
  set(GAAC_STOCK_FOUND TRUE)
  add_library(stock_llama INTERFACE)
  target_include_directories(stock_llama SYSTEM INTERFACE
    "${GAAC_STOCK_SOURCE}/include" "${GAAC_STOCK_SOURCE}/ggml/include")
  target_link_directories(stock_llama INTERFACE "${GAAC_STOCK_DIR}/bin")
  target_link_libraries(stock_llama INTERFACE llama ggml ggml-base)
  target_link_options(stock_llama INTERFACE "-Wl,-rpath,${GAAC_STOCK_DIR}/bin")
endif()
