/* The sums of the leaves that rows reach in trees, see trees.py, which has the same in NumPy.

   What the arrays refer to is checked once, when they are prepared: every reference is to a node or a leaf, and
   children come after their parents, so that every walk ends. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <stdint.h>
#include <string.h>

enum {
    ROWS_AT_ONCE = 64, /* which walk one tree after the other, while its nodes are in the cache */
    WALKS_AT_ONCE = 8, /* side by side, so that one does not wait for the node of another */
};

/* children: where rows go whose feature is at most the threshold, and all others; leaf i is ~i. */
typedef struct {
    double threshold;
    int32_t feature, children[2];
} Node;

/* width: of a leaf, 1 or all sums. output: the first sum that each tree adds to. */
typedef struct {
    Py_buffer roots, values, output;
    Py_ssize_t n_trees, n_columns, n_sums, width;
    double divisor;
    Node *nodes;
} Trees;

static const char *NAME = "core.packed._tree_walks.Trees";

/* Replace references to nodes by those to the leaves that rows reach from there; all references are to leaves or
   to nodes of the trees. */
static inline void reach(const Node *nodes, const double *const rows[WALKS_AT_ONCE], int32_t at[WALKS_AT_ONCE])
{
    int32_t all; /* negative as soon as every reference is to a leaf */
    do {
        all = -1;
        for (int k = 0; k < WALKS_AT_ONCE; k++) {
            if (at[k] >= 0) {
                const Node *node = &nodes[at[k]];
                at[k] = node->children[rows[k][node->feature] > node->threshold];
            }
            all &= at[k];
        }
    } while (all >= 0);
}

/* Add the leaf of a tree to the sums of a row. */
static inline void add(const Trees *trees, Py_ssize_t tree, int32_t leaf, double *sums)
{
    const double *values = (const double *)trees->values.buf + (Py_ssize_t)~leaf * trees->width;
    double *own = sums + ((const int32_t *)trees->output.buf)[tree];
    for (Py_ssize_t k = 0; k < trees->width; k++)
        own[k] += values[k];
}

/* Several trees side by side, for one row. */
static void walk_row(const Trees *trees, const double *row, double *sums)
{
    const int32_t *roots = trees->roots.buf;
    const double *rows[WALKS_AT_ONCE];
    int32_t at[WALKS_AT_ONCE];
    for (int k = 0; k < WALKS_AT_ONCE; k++)
        rows[k] = row;
    for (Py_ssize_t tree = 0; tree < trees->n_trees; tree += WALKS_AT_ONCE) {
        int n = trees->n_trees - tree < WALKS_AT_ONCE ? (int)(trees->n_trees - tree) : WALKS_AT_ONCE;
        for (int k = 0; k < WALKS_AT_ONCE; k++)
            at[k] = k < n ? roots[tree + k] : -1;
        reach(trees->nodes, rows, at);
        for (int k = 0; k < n; k++)
            add(trees, tree + k, at[k], sums);
    }
}

/* Several rows side by side, through one tree after the other. */
static void walk_rows(const Trees *trees, const double *first, Py_ssize_t n, double *sums)
{
    const int32_t *roots = trees->roots.buf;
    const double *rows[WALKS_AT_ONCE];
    int32_t at[WALKS_AT_ONCE];
    for (Py_ssize_t tree = 0; tree < trees->n_trees; tree++) {
        for (Py_ssize_t i = 0; i < n; i += WALKS_AT_ONCE) {
            int some = n - i < WALKS_AT_ONCE ? (int)(n - i) : WALKS_AT_ONCE;
            for (int k = 0; k < WALKS_AT_ONCE; k++) {
                rows[k] = first + (i + (k < some ? k : 0)) * trees->n_columns;
                at[k] = k < some ? roots[tree] : -1;
            }
            reach(trees->nodes, rows, at);
            for (int k = 0; k < some; k++)
                add(trees, tree, at[k], sums + (i + k) * trees->n_sums);
        }
    }
}

static void walk(const Trees *trees, const double *rows, Py_ssize_t n, double *sums)
{
    memset(sums, 0, (size_t)(n * trees->n_sums) * sizeof *sums);
    for (Py_ssize_t i = 0; i < n; i += ROWS_AT_ONCE) {
        Py_ssize_t some = n - i < ROWS_AT_ONCE ? n - i : ROWS_AT_ONCE;
        const double *block = rows + i * trees->n_columns;
        if (some == 1)
            walk_row(trees, block, sums + i * trees->n_sums);
        else
            walk_rows(trees, block, some, sums + i * trees->n_sums);
    }
    for (Py_ssize_t i = 0; i < n * trees->n_sums; i++)
        sums[i] /= trees->divisor;
}

static PyObject *add_leaves(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *capsule;
    Py_buffer rows, sums;
    if (!PyArg_ParseTuple(arguments, "Oy*w*", &capsule, &rows, &sums))
        return NULL;
    const Trees *trees = PyCapsule_GetPointer(capsule, NAME);
    Py_ssize_t n = trees == NULL ? 0 : rows.len / (trees->n_columns * (Py_ssize_t)sizeof(double));
    if (trees != NULL && (rows.len != n * trees->n_columns * (Py_ssize_t)sizeof(double) ||
                          sums.len != n * trees->n_sums * (Py_ssize_t)sizeof(double)))
        PyErr_SetString(PyExc_ValueError, "rows or sums are not of the shape that belongs to the trees");
    if (!PyErr_Occurred()) {
        PyThreadState *state = PyEval_SaveThread();
        walk(trees, rows.buf, n, sums.buf);
        PyEval_RestoreThread(state);
    }
    PyBuffer_Release(&rows);
    PyBuffer_Release(&sums);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static void free_trees(Trees *trees)
{
    PyBuffer_Release(&trees->roots);
    PyBuffer_Release(&trees->values);
    PyBuffer_Release(&trees->output);
    PyMem_Free(trees->nodes);
    PyMem_Free(trees);
}

static void destroy(PyObject *capsule)
{
    free_trees(PyCapsule_GetPointer(capsule, NAME));
}

/* Whether a reference is to a leaf, or to a node from ``first`` on. */
static int is_reference(int32_t reference, Py_ssize_t first, Py_ssize_t n_nodes, Py_ssize_t n_leaves)
{
    return reference < 0 ? ~reference < n_leaves : reference >= first && reference < n_nodes;
}

/* Check the roots and outputs, and put tests and children together in nodes; returns 0 if some do not fit. */
static int connect(Trees *trees, const Py_buffer *feature, const Py_buffer *threshold, const Py_buffer *test,
                   const Py_buffer *children)
{
    Py_ssize_t n_tests = threshold->len / 8, n_nodes = test->len / 4;
    /* Within these, no size in bytes of a row, of sums or of a leaf overflows. */
    if (trees->n_columns < 1 || trees->n_columns > INT32_MAX || trees->n_sums < 1 || trees->n_sums > INT32_MAX)
        return 0;
    if ((trees->width != 1 && trees->width != trees->n_sums) || feature->len != 4 * n_tests || children->len != 8 * n_nodes || trees->output.len != trees->roots.len)
        return 0;
    Py_ssize_t n_leaves = trees->values.len / (8 * trees->width);
    trees->n_trees = trees->roots.len / 4;
    const int32_t *roots = trees->roots.buf, *output = trees->output.buf;
    for (Py_ssize_t i = 0; i < trees->n_trees; i++)
        if (!is_reference(roots[i], 0, n_nodes, n_leaves) || output[i] < 0 ||
            output[i] > trees->n_sums - trees->width)
            return 0;
    trees->nodes = PyMem_Malloc((size_t)n_nodes * sizeof *trees->nodes + 1);
    if (trees->nodes == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    const int32_t *tests = test->buf, *references = children->buf, *features = feature->buf;
    for (Py_ssize_t i = 0; i < n_nodes; i++) {
        Node *node = &trees->nodes[i];
        memcpy(node->children, references + 2 * i, sizeof node->children);
        if (tests[i] < 0 || tests[i] >= n_tests || !is_reference(node->children[0], i + 1, n_nodes, n_leaves) ||
            !is_reference(node->children[1], i + 1, n_nodes, n_leaves))
            return 0;
        node->threshold = ((const double *)threshold->buf)[tests[i]];
        node->feature = features[tests[i]];
        if (node->feature < 0 || node->feature >= trees->n_columns)
            return 0;
    }
    return 1;
}

/* Count the trees that have inner nodes at each depth, as far as ``counts`` goes; returns 0 if some reference does
   not fit, and −1 without memory. */
static int count(const int32_t *roots, Py_ssize_t n_trees, const int32_t *children, Py_ssize_t n_nodes, int64_t *counts,
                 int32_t n_counts)
{
    int32_t *heights = PyMem_Malloc((size_t)n_nodes * sizeof *heights + 1);
    if (heights == NULL)
        return -1;
    int fits = 1;
    for (Py_ssize_t node = n_nodes - 1; fits && node >= 0; node--) {
        int32_t below = 0;
        for (int side = 0; side < 2; side++) {
            int32_t reference = children[2 * node + side];
            fits = fits && is_reference(reference, node + 1, n_nodes, PY_SSIZE_T_MAX);
            if (fits && reference >= 0 && heights[reference] > below)
                below = heights[reference];
        }
        heights[node] = below < n_counts ? below + 1 : n_counts;
    }
    memset(counts, 0, (size_t)n_counts * sizeof *counts);
    for (Py_ssize_t tree = 0; fits && tree < n_trees; tree++) {
        fits = is_reference(roots[tree], 0, n_nodes, PY_SSIZE_T_MAX);
        for (int32_t depth = 0; fits && roots[tree] >= 0 && depth < heights[roots[tree]]; depth++)
            counts[depth]++;
    }
    PyMem_Free(heights);
    return fits;
}

static PyObject *count_levels(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer roots, children, counts;
    if (!PyArg_ParseTuple(arguments, "y*y*w*", &roots, &children, &counts))
        return NULL;
    Py_ssize_t n_counts = counts.len / 8 < INT32_MAX ? counts.len / 8 : INT32_MAX;
    int fits = count(roots.buf, roots.len / 4, children.buf, children.len / 8, counts.buf, (int32_t)n_counts);
    if (fits == 0)
        PyErr_SetString(PyExc_ValueError, "these are no trees");
    else if (fits < 0)
        PyErr_NoMemory();
    PyBuffer_Release(&roots);
    PyBuffer_Release(&children);
    PyBuffer_Release(&counts);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *prepare(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer feature = {0}, threshold = {0}, test = {0}, children = {0};
    Trees *trees = PyMem_Calloc(1, sizeof *trees);
    PyObject *capsule = NULL;
    if (trees == NULL)
        return PyErr_NoMemory();
    if (PyArg_ParseTuple(arguments, "y*y*y*y*y*y*y*nnnd", &feature, &threshold, &trees->roots, &test, &children,
                         &trees->values, &trees->output, &trees->n_columns, &trees->n_sums, &trees->width,
                         &trees->divisor)) {
        if (connect(trees, &feature, &threshold, &test, &children))
            capsule = PyCapsule_New(trees, NAME, destroy);
        else if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "these are no trees");
        PyBuffer_Release(&feature);
        PyBuffer_Release(&threshold);
        PyBuffer_Release(&test);
        PyBuffer_Release(&children);
        if (capsule == NULL)
            free_trees(trees);
    } else {
        /* What was parsed has been released. */
        PyMem_Free(trees);
    }
    return capsule;
}

static PyMethodDef methods[] = {
    {"prepare", prepare, METH_VARARGS, NULL},
    {"add_leaves", add_leaves, METH_VARARGS, NULL},
    {"count_levels", count_levels, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_tree_walks",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__tree_walks(void)
{
    return PyModuleDef_Init(&definition);
}
