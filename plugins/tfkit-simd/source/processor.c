/* What the processor has: a module of its own, because `tfkit plan` asks, and imports neither torch nor OpenMP. */

#define Py_LIMITED_API 0x030a0000
#include <Python.h>
#include <stdlib.h>
#include <strings.h>

/* (has AVX2, has AVX-VNNI, has AVX-512 VNNI), as far as torch's variable ATEN_CPU_CAPABILITY allows them */
static PyObject *instructions(PyObject *module, PyObject *none)
{
#ifdef X86
    const char *limit = getenv("ATEN_CPU_CAPABILITY");
    const int no_avx2 = limit && !strcasecmp(limit, "default"), no_more = no_avx2 || (limit && !strcasecmp(limit, "avx2"));
    const int avx2 = !no_avx2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const int avx512 = avx2 && !no_more && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return Py_BuildValue(
        "(NNN)", PyBool_FromLong(avx2), PyBool_FromLong(avx2 && !no_more && __builtin_cpu_supports("avxvnni")),
        PyBool_FromLong(avx512 && __builtin_cpu_supports("avx512vnni")));
#else
    return Py_BuildValue("(OOO)", Py_False, Py_False, Py_False);
#endif
}

static PyMethodDef functions[] = {{"instructions", instructions, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_processor", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__processor(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddStringConstant(module, "SOURCES", SOURCES) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
