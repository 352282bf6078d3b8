# A test: object files that are built for one instruction set define no weak symbol. The linker keeps
# any one of several weak definitions, and an older CPU would be given the one it cannot run.
#   cmake -DNM=nm "-DOBJECTS=a.o;b.o" -P NoWeakSymbols.cmake
foreach(object ${OBJECTS})
  if(NOT object MATCHES "avx|amx")
    continue()
  endif()
  execute_process(COMMAND ${NM} -C ${object} OUTPUT_VARIABLE symbols RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${NM} cannot read ${object}")
  endif()
  math(EXPR seen "${seen} + 1")
  # DW.ref.* is a pointer to a function of the runtime, the same in every file.
  string(REGEX MATCHALL "[0-9a-f]+ [WVu] [^\n]*" weak "${symbols}")
  foreach(symbol ${weak})
    if(NOT symbol MATCHES "DW\\.ref\\.")
      message(SEND_ERROR "${object} defines the weak symbol ${symbol}")
    endif()
  endforeach()
endforeach()
if(NOT seen)
  message(FATAL_ERROR "none of the objects is built for an instruction set: ${OBJECTS}")
endif()
