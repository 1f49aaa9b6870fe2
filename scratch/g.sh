export PYTHONDONTWRITEBYTECODE=1
run() { n=$1; shift; (python3 -m pytest -q -p no:cacheprovider "$@" > $OUT/$n.log 2>&1; echo "rc $?" >> $OUT/$n.log) & }
python3 -m cuda_reference build > /dev/null 2>&1
run a tests/test_ops.py tests/test_custom_ops.py tests/test_arguments.py tests/test_cross_check.py tests/test_cli.py
run b tests/test_interpreter.py tests/test_debug.py tests/test_sanitizers.py tests/test_gallery.py tests/test_races.py tests/test_bisection.py tests/test_stepping.py
run c tests/test_shrink.py tests/test_properties.py tests/test_no_torch_compute.py tests/test_numerics.py tests/test_timing.py tests/test_benchmark_plugin.py tests/test_pytest_plugin.py
run d tests/test_debug_cuda.py tests/test_tool_output.py
run e tests/test_host_target.py tests/test_build.py tests/test_inline.py tests/test_ahead_of_time.py tests/test_tensor_cores.py
run f tests/test_compile.py tests/test_doctor.py tests/test_structure.py tests/test_add_an_op.py tests/test_faults.py
(time timeout 300 python3 -m compare check --full --require triton,cuda) > $OUT/check.log 2>&1 &
wait
for f in a b c d e f; do echo "== $f"; grep "^FAILED\|^ERROR\|passed\|failed\|^rc" $OUT/$f.log | cut -c1-200 | tail -25; done
tail -8 $OUT/check.log
