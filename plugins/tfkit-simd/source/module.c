/* The kernels as functions of Python, which checks their arguments: nothing here does. */

#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernels.h"

/* 0 with an error unless the arguments are so many whole numbers. */
static int read_numbers(PyObject *const *given, Py_ssize_t count, int64_t *n, Py_ssize_t expected)
{
    if (count != expected) {
        PyErr_Format(PyExc_TypeError, "%zd arguments expected", expected);
        return 0;
    }
    for (Py_ssize_t i = 0; i < expected; i++)
        n[i] = PyLong_AsLongLong(given[i]);
    return !PyErr_Occurred();
}

/* int8_product(variant, x, y, panels, scales, starts, bias, rows, stride, inner, outer) */
static PyObject *int8_product(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    int64_t n[11];
    if (!read_numbers(given, count, n, 11))
        return NULL;
    const struct int8_product p = {
        (const float *)n[1], (float *)n[2], (const int8_t *)n[3], (const float *)n[4], (const int32_t *)n[5],
        (const float *)n[6], n[7], n[8], n[9], n[10]};
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = n[0] == 2 ? int8_product_avx512(&p) : n[0] == 1 ? int8_product_avx_vnni(&p) : int8_product_avx2(&p);
    Py_END_ALLOW_THREADS
    if (!done)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* attend(variant, scale, query, key, value, output, lse, index, counts, added, batch, heads, key_heads, queries, keys, width,
   live_rows, 3 strides each of query, key, value, added) */
static PyObject *attend(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    int64_t n[29];
    if (count != 29)
        return PyErr_Format(PyExc_TypeError, "29 arguments expected");
    for (int i = 0; i < 29; i++)
        n[i] = i == 1 ? 0 : PyLong_AsLongLong(given[i]);
    const double scale = PyFloat_AsDouble(given[1]);
    if (PyErr_Occurred())
        return NULL;
    struct attention a = {
        (const float *)n[2], (const float *)n[3], (const float *)n[4], (float *)n[5], (float *)n[6], (const int32_t *)n[7],
        (const int32_t *)n[8], (const float *)n[9], n[10], n[11], n[12], n[13], n[14], n[15], n[16],
        {n[17], n[18], n[19]}, {n[20], n[21], n[22]}, {n[23], n[24], n[25]}, {n[26], n[27], n[28]}, (float)scale};
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = n[0] ? attend_avx512(&a) : attend_avx2(&a);
    Py_END_ALLOW_THREADS
    if (!done)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* beam_top_k(variant, logits, totals, values, log_probs, indices, sentences, beams, vocabulary, count) */
static PyObject *beam_top_k(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    int64_t n[10];
    if (!read_numbers(given, count, n, 10))
        return NULL;
    const struct beam_top_k a = {
        (const float *)n[1], (const float *)n[2], (float *)n[3], (float *)n[4], (int64_t *)n[5], n[6], n[7], n[8], n[9]};
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = n[0] ? beam_top_k_avx512(&a) : beam_top_k_avx2(&a);
    Py_END_ALLOW_THREADS
    if (!done)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* most_probable(variant, logits, indices, rows, vocabulary) */
static PyObject *most_probable(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    int64_t n[5];
    if (!read_numbers(given, count, n, 5))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    (n[0] ? most_probable_avx512 : most_probable_avx2)((const float *)n[1], (int64_t *)n[2], n[3], n[4]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* float32_product(variant, x, y, panels, bias, rows, stride, inner, outer) */
static PyObject *float32_product(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    int64_t n[9];
    if (!read_numbers(given, count, n, 9))
        return NULL;
    const struct float32_product p = {
        (const float *)n[1], (float *)n[2], (const float *)n[3], (const float *)n[4], n[5], n[6], n[7], n[8]};
    Py_BEGIN_ALLOW_THREADS
    (n[0] ? float32_product_avx512 : float32_product_avx2)(&p);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *step_failed(int done)
{
    if (!done)
        return PyErr_NoMemory();
    return PyErr_Format(PyExc_IndexError, "a recorded step reads a row, or writes a position, that its tensor does not have");
}

/* run_step(variant, operations, count) */
static PyObject *run_step(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    int64_t n[3];
    if (!read_numbers(given, count, n, 3))
        return NULL;
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = (n[0] ? run_step_avx512 : run_step_avx2)((const struct operation *)n[1], n[2]);
    Py_END_ALLOW_THREADS
    if (done != 1)
        return step_failed(done);
    Py_RETURN_NONE;
}

/* run_greedy(variant, operations, count, ids, place, logits, vocabulary, batch, width, first, last, end, tokens, log_probs, limits,
   counts, finished, forbidden, number of these) */
static PyObject *run_greedy(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    int64_t n[19];
    if (!read_numbers(given, count, n, 19))
        return NULL;
    const struct greedy g = {(const struct operation *)n[1], n[2], (int64_t *)n[3], (int64_t *)n[4], (float *)n[5], n[6], n[7], n[8],
        n[9], n[10], n[11], (int64_t *)n[12], (float *)n[13], (const int64_t *)n[14], (int64_t *)n[15], (uint8_t *)n[16],
        (const int64_t *)n[17], n[18]};
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = (n[0] ? run_greedy_avx512 : run_greedy_avx2)(&g);
    Py_END_ALLOW_THREADS
    if (done < 1)
        return step_failed(done);
    return PyBool_FromLong(done == 1);
}

/* run_beams(variant, operations, count, ids, place, order, logits, vocabulary, sentences, width, size, length, first, last, end,
   early, ranked, totals, limits, penalties, max_penalties, forbidden, number of these, rows, tokens and log_probs of the levels,
   scores, totals, lengths, ended, rows, tokens, log_probs, status). Whether the search is at its end. */
static PyObject *run_beams(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    int64_t n[34];
    if (!read_numbers(given, count, n, 34))
        return NULL;
    const struct beams b = {(const struct operation *)n[1], n[2], (int64_t *)n[3], (int64_t *)n[4], (int64_t *)n[5],
        (const float *)n[6], n[7], n[8], n[9], n[10], n[11], n[12], n[13], n[14], n[15], n[16], (float *)n[17],
        (const int64_t *)n[18], (const float *)n[19], (const float *)n[20], (const int64_t *)n[21], n[22], (int64_t *)n[23],
        (int64_t *)n[24], (float *)n[25], (float *)n[26], (float *)n[27], (int64_t *)n[28], (uint8_t *)n[29], (int64_t *)n[30],
        (int64_t *)n[31], (float *)n[32], (uint8_t *)n[33]};
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = (n[0] ? run_beams_avx512 : run_beams_avx2)(&b);
    Py_END_ALLOW_THREADS
    if (done < 1)
        return step_failed(done);
    return PyBool_FromLong(done == 1);
}

/* fingerprints(variant, weights, places, lanes): places holds the address and the count of each weight */
static PyObject *fingerprints(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    int64_t n[4];
    if (!read_numbers(given, count, n, 4))
        return NULL;
    const int64_t *place = (const int64_t *)n[2];
    int32_t *lanes = (int32_t *)n[3];
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; i < n[1]; i++)
        (n[0] ? fingerprint_avx512 : fingerprint_avx2)((const float *)place[2 * i], place[2 * i + 1], lanes + i * FINGERPRINT);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"int8_product", (PyCFunction)(void (*)(void))int8_product, METH_FASTCALL, NULL},
    {"attend", (PyCFunction)(void (*)(void))attend, METH_FASTCALL, NULL},
    {"beam_top_k", (PyCFunction)(void (*)(void))beam_top_k, METH_FASTCALL, NULL},
    {"most_probable", (PyCFunction)(void (*)(void))most_probable, METH_FASTCALL, NULL},
    {"float32_product", (PyCFunction)(void (*)(void))float32_product, METH_FASTCALL, NULL},
    {"run_step", (PyCFunction)(void (*)(void))run_step, METH_FASTCALL, NULL},
    {"run_greedy", (PyCFunction)(void (*)(void))run_greedy, METH_FASTCALL, NULL},
    {"run_beams", (PyCFunction)(void (*)(void))run_beams, METH_FASTCALL, NULL},
    {"fingerprints", (PyCFunction)(void (*)(void))fingerprints, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_kernels", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernels(void)
{
    return PyModule_Create(&definition);
}
