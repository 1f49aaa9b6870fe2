set -x
python3 -m pytest -q tests/test_bisection.py tests/test_tool_output.py -rs 2>&1 | tail -15
(time timeout 200 python3 -m compare debug gemm_bias_act --side cuda --impl cuda-gpu --shape 33,65,70 --dtype float16) 2>&1 | tail -30
mkdir -p $OUT/c; cp -r triton_kernels cuda_reference compare $OUT/c/; cd $OUT/c
python3 - <<'P'
p="cuda_reference/csrc/gemm.cuh"; t=open(p).read()
a="    __syncthreads();  // the tiles are complete\n"; assert t.count(a)==1; open(p,"w").write(t.replace(a,""))
P
PYTHONPATH=$PWD timeout 100 python3 -m compare debug gemm_bias_act --impl cuda-gpu/tiled --tool racecheck --shape 33,65,70 --dtype float32 2>&1 | tail -30
cp /dev/null /dev/null; cd ../..; rm -rf $OUT/c; mkdir $OUT/c;  cp -r triton_kernels cuda_reference compare $OUT/c/ 2>/dev/null
