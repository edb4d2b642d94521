/* The known terms of a text and their weights, see terms.py, whose constants these are, and term_table.py, whose
   order of additions this is.

   The occurrences of terms are sorted and not kept in a table of hashes: the numbers of terms are no secret, and
   a text could be made of terms that meet in one place of it. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    WORDS = 0, /* the families, by their places among those of terms.py */
    PAIRS = 1,
    FIRST_RUNS = 2, /* of three characters; of four and of five follow */
    FAMILIES = 5,

    BETWEEN = 0, /* the classes of characters */
    WORD = 1,
    ALONE = 2,
    CLASSES = 0x10001, /* of the basic plane, and of all others */

    COUNTS = 256, /* of a term in a text, the largest for all beyond it */
    UNIT_BITS = 16,
    MAX_BITS = 16,
    FEW = 12, /* terms that are sorted one by one */
};

static const uint64_t BASE = 0x9E3779B97F4A7C15ULL, MIX = 0xD6E8FEB86659FD93ULL, PAIR = 0xC2B2AE3D27D4EB4FULL;

/* The known terms of a family, ascending. Those whose first bits are b begin at starts[b]. */
typedef struct {
    int family, bits;
    Py_ssize_t size;
    const uint64_t *terms;
    const int64_t *idf;
    int64_t unknown_idf;
    uint32_t *starts;
} Table;

typedef struct {
    PyObject *arguments; /* whose bytes the tables refer to */
    const uint8_t *classes;
    const int64_t *frequencies;
    Py_ssize_t n_tables;
    Table tables[];
} Prepared;

/* What one text needs. letters: its characters, of those between two words one blank. kinds: their classes.
   terms, sorted: of one family. columns, values: of the known terms of all families. */
typedef struct {
    Py_ssize_t n, n_terms, n_found;
    uint32_t *letters;
    uint8_t *kinds;
    uint64_t *terms, *sorted;
    int64_t *columns;
    double *values;
} Work;

static uint64_t mixed(uint64_t number, int family)
{
    number *= (uint64_t)(1 + 2 * family);
    number ^= number >> 32;
    number *= MIX;
    number ^= number >> 32;
    number *= MIX;
    return number ^ (number >> 32);
}

static uint64_t run_number(const uint32_t *letters, Py_ssize_t length, int family)
{
    uint64_t number = 0, power = 1;
    for (Py_ssize_t i = 0; i < length; i++, power *= BASE)
        number += ((uint64_t)letters[i] + 1) * power;
    return mixed(number, family);
}

/* Keep one blank between words, and one before and behind all. */
static void squeeze(Work *work, const Py_UCS4 *points, Py_ssize_t n, const uint8_t *classes)
{
    Py_ssize_t kept = 1;
    work->letters[0] = ' ';
    work->kinds[0] = BETWEEN;
    for (Py_ssize_t i = 0; i <= n; i++) {
        uint8_t kind = i == n ? BETWEEN : classes[points[i] < CLASSES ? points[i] : CLASSES - 1];
        if (kind == BETWEEN && work->kinds[kept - 1] == BETWEEN)
            continue;
        work->letters[kept] = kind == BETWEEN ? ' ' : points[i];
        work->kinds[kept++] = kind;
    }
    work->n = kept;
}

/* The numbers of the words, and of pairs of words that follow each other. */
static void add_words(Work *work, int is_of_pairs)
{
    const uint8_t *kinds = work->kinds;
    uint64_t last = 0;
    int has_last = 0;
    for (Py_ssize_t i = 0; i < work->n;) {
        Py_ssize_t start = i++;
        if (kinds[start] == ALONE && !is_of_pairs) {
            work->terms[work->n_terms++] = run_number(work->letters + start, 1, WORDS);
            if (i < work->n && kinds[i] == ALONE)
                work->terms[work->n_terms++] = run_number(work->letters + start, 2, WORDS);
        }
        if (kinds[start] != WORD)
            continue;
        while (i < work->n && kinds[i] == WORD)
            i++;
        if (i - start == 1 && work->letters[start] < 0x80)
            continue;
        uint64_t word = run_number(work->letters + start, i - start, WORDS);
        if (!is_of_pairs)
            work->terms[work->n_terms++] = word;
        else if (has_last)
            work->terms[work->n_terms++] = mixed(last * PAIR + word, PAIRS);
        last = word;
        has_last = 1;
    }
}

/* The numbers of runs of characters that lie within a word and the blanks around it. */
static void add_runs(Work *work, int family)
{
    Py_ssize_t length = family - FIRST_RUNS + 3, inside = 0;
    for (Py_ssize_t i = 1; i + 1 < work->n; i++) {
        inside = work->kinds[i] == BETWEEN ? 0 : inside + 1;
        if (inside >= length - 2)
            work->terms[work->n_terms++] = run_number(work->letters + i + 2 - length, length, family);
    }
}

static int compare_terms(const void *one, const void *other)
{
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

static Py_ssize_t first_bits(uint64_t term, int bits)
{
    return (Py_ssize_t)(term >> (64 - bits));
}

/* The number of bits, at least 1, for some n terms each. */
static int bits_of(Py_ssize_t n)
{
    int bits = 1;
    while (bits < MAX_BITS && ((Py_ssize_t)1 << bits) < n)
        bits++;
    return bits;
}

/* Sort the terms into work->sorted: by their first bits, then the few that have the same. */
static void sort_terms(Work *work, uint32_t *ends)
{
    int bits = bits_of(work->n_terms);
    Py_ssize_t n_parts = (Py_ssize_t)1 << bits;
    memset(ends, 0, (size_t)(n_parts + 1) * sizeof *ends);
    for (Py_ssize_t i = 0; i < work->n_terms; i++)
        ends[first_bits(work->terms[i], bits) + 1]++;
    for (Py_ssize_t part = 0; part < n_parts; part++)
        ends[part + 1] += ends[part];
    /* ends[part] is where the part begins, and is moved to its end. */
    for (Py_ssize_t i = 0; i < work->n_terms; i++)
        work->sorted[ends[first_bits(work->terms[i], bits)]++] = work->terms[i];
    for (Py_ssize_t part = 0, start = 0; part < n_parts; start = ends[part++]) {
        uint64_t *terms = work->sorted + start;
        Py_ssize_t n = (Py_ssize_t)ends[part] - start;
        if (n > FEW) {
            qsort(terms, (size_t)n, sizeof *terms, compare_terms);
            continue;
        }
        for (Py_ssize_t i = 1; i < n; i++) {
            uint64_t term = terms[i];
            Py_ssize_t j = i;
            for (; j > 0 && terms[j - 1] > term; j--)
                terms[j] = terms[j - 1];
            terms[j] = term;
        }
    }
}

/* The place of a term among the known ones; -1 if there is none. */
static Py_ssize_t place_of(const Table *table, uint64_t term)
{
    Py_ssize_t low = table->starts[first_bits(term, table->bits)];
    Py_ssize_t high = table->starts[first_bits(term, table->bits) + 1];
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (table->terms[middle] < term)
            low = middle + 1;
        else
            high = middle;
    }
    return low < table->size && table->terms[low] == term ? low : -1;
}

/* Add the known ones of the sorted terms, divided by the norm over all of them. */
static void weigh(Work *work, const Table *table, const Prepared *prepared, Py_ssize_t first_column)
{
    Py_ssize_t first = work->n_found;
    /* Products and sums beyond int64 wrap around, as in NumPy. */
    uint64_t squares = 0;
    for (Py_ssize_t i = 0; i < work->n_terms;) {
        Py_ssize_t start = i;
        uint64_t term = work->sorted[i];
        while (i < work->n_terms && work->sorted[i] == term)
            i++;
        Py_ssize_t count = i - start, place = place_of(table, term);
        int64_t idf = place < 0 ? table->unknown_idf : table->idf[place];
        uint64_t frequency = (uint64_t)prepared->frequencies[count < COUNTS ? count : COUNTS - 1];
        int64_t weight = (int64_t)(frequency * (uint64_t)idf) >> UNIT_BITS;
        squares += (uint64_t)weight * (uint64_t)weight;
        if (place >= 0) {
            work->columns[work->n_found] = first_column + place;
            work->values[work->n_found++] = (double)weight;
        }
    }
    double norm = sqrt((double)(int64_t)squares * (double)prepared->n_tables);
    for (Py_ssize_t i = first; i < work->n_found; i++)
        work->values[i] /= norm;
}

static void find(Work *work, const Prepared *prepared, uint32_t *ends)
{
    Py_ssize_t column = 0;
    for (Py_ssize_t i = 0; i < prepared->n_tables; i++) {
        const Table *table = &prepared->tables[i];
        work->n_terms = 0;
        if (table->family >= FIRST_RUNS)
            add_runs(work, table->family);
        else
            add_words(work, table->family == PAIRS);
        sort_terms(work, ends);
        weigh(work, table, prepared, column);
        column += table->size;
    }
}

static const char *NAME = "core.packed._text_terms.Prepared";

static size_t min_size(size_t one, size_t other)
{
    return one < other ? one : other;
}

static PyObject *find_terms(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2 || !PyUnicode_Check(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "find_terms(prepared, text) takes what prepare gives, and a text");
        return NULL;
    }
    const Prepared *prepared = PyCapsule_GetPointer(arguments[0], NAME);
    if (prepared == NULL)
        return NULL;
    Py_ssize_t n = PyUnicode_GetLength(arguments[1]);
    Py_UCS4 *points = PyUnicode_AsUCS4Copy(arguments[1]);
    if (points == NULL)
        return NULL;
    /* A text has fewer terms of a family than twice its letters. */
    size_t letters = (size_t)n + 2, terms = 2 * letters, found = 0;
    for (Py_ssize_t i = 0; i < prepared->n_tables; i++)
        found += min_size(terms, (size_t)prepared->tables[i].size);
    size_t n_ends = ((size_t)1 << bits_of((Py_ssize_t)terms)) + 1;
    Work work = {.n = 0};
    PyObject *answer = NULL;
    char *memory = PyMem_Malloc(16 * (terms + found) + 4 * (letters + n_ends) + letters);
    if (memory == NULL) {
        PyErr_NoMemory();
    } else {
        work.terms = (uint64_t *)memory;
        work.sorted = work.terms + terms;
        work.columns = (int64_t *)(work.sorted + terms);
        work.values = (double *)(work.columns + found);
        work.letters = (uint32_t *)(work.values + found);
        uint32_t *ends = work.letters + letters;
        work.kinds = (uint8_t *)(ends + n_ends);
        squeeze(&work, points, n, prepared->classes);
        find(&work, prepared, ends);
        answer = Py_BuildValue("(y#y#)", (char *)work.columns, work.n_found * (Py_ssize_t)sizeof *work.columns,
                               (char *)work.values, work.n_found * (Py_ssize_t)sizeof *work.values);
    }
    PyMem_Free(memory);
    PyMem_Free(points);
    return answer;
}

static void free_prepared(Prepared *prepared)
{
    for (Py_ssize_t i = 0; i < prepared->n_tables; i++)
        PyMem_Free(prepared->tables[i].starts);
    Py_DECREF(prepared->arguments);
    PyMem_Free(prepared);
}

static void destroy(PyObject *capsule)
{
    free_prepared(PyCapsule_GetPointer(capsule, NAME));
}

/* Read one (family, terms, idf, unknown_idf); returns 0 with an error. */
static int read_table(PyObject *argument, Table *table)
{
    Py_ssize_t n_terms, n_idf;
    const char *terms, *idf;
    long long unknown_idf;
    if (!PyTuple_Check(argument)) {
        PyErr_SetString(PyExc_TypeError, "a table of terms is no tuple");
        return 0;
    }
    if (!PyArg_ParseTuple(argument, "iy#y#L", &table->family, &terms, &n_terms, &idf, &n_idf, &unknown_idf))
        return 0;
    table->size = n_terms / (Py_ssize_t)sizeof *table->terms;
    if (table->family < 0 || table->family >= FAMILIES || n_terms != n_idf || n_terms % 8 || table->size > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a table of terms has an unknown family or parts of different lengths");
        return 0;
    }
    table->terms = (const uint64_t *)terms;
    table->idf = (const int64_t *)idf;
    table->unknown_idf = unknown_idf;
    table->bits = bits_of(table->size);
    Py_ssize_t n_parts = (Py_ssize_t)1 << table->bits, place = 0;
    table->starts = PyMem_Malloc((size_t)(n_parts + 1) * sizeof *table->starts);
    if (table->starts == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    for (Py_ssize_t part = 0; part < n_parts; part++) {
        table->starts[part] = (uint32_t)place;
        while (place < table->size && first_bits(table->terms[place], table->bits) <= part)
            place++;
    }
    table->starts[n_parts] = (uint32_t)table->size;
    return 1;
}

static PyObject *prepare(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *tables;
    const char *classes, *frequencies;
    Py_ssize_t n_classes, n_frequencies;
    if (!PyArg_ParseTuple(arguments, "y#y#O", &classes, &n_classes, &frequencies, &n_frequencies, &tables))
        return NULL;
    if (n_classes != CLASSES || n_frequencies != COUNTS * 8 || !PyTuple_Check(tables) || PyTuple_Size(tables) > 99) {
        PyErr_SetString(PyExc_ValueError, "prepare(classes, frequencies, tables) does not take these");
        return NULL;
    }
    Py_ssize_t n = PyTuple_Size(tables);
    Prepared *prepared = PyMem_Calloc(1, sizeof *prepared + (size_t)n * sizeof *prepared->tables);
    if (prepared == NULL)
        return PyErr_NoMemory();
    Py_INCREF(arguments);
    prepared->arguments = arguments;
    prepared->classes = (const uint8_t *)classes;
    prepared->frequencies = (const int64_t *)frequencies;
    prepared->n_tables = n;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!read_table(PyTuple_GetItem(tables, i), &prepared->tables[i])) {
            free_prepared(prepared);
            return NULL;
        }
    }
    PyObject *capsule = PyCapsule_New(prepared, NAME, destroy);
    if (capsule == NULL)
        free_prepared(prepared);
    return capsule;
}

static PyMethodDef methods[] = {
    {"prepare", prepare, METH_VARARGS, NULL},
    {"find_terms", (PyCFunction)(void (*)(void))find_terms, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_text_terms",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__text_terms(void)
{
    return PyModuleDef_Init(&definition);
}
