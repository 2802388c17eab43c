package millrace.spark;

import java.io.FileOutputStream;
import java.io.FileReader;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Collections;
import java.util.Iterator;
import java.util.Map;
import java.util.zip.ZipEntry;
import java.util.zip.ZipOutputStream;

import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.internal.connector.SupportsMetadata;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.util.AccumulatorV2;
import org.codehaus.janino.SimpleCompiler;

/**
 * The source in Python, whose batches Spark is given as they came: as columns of Arrow, of which
 * Spark would otherwise make rows one by one, and copy every value twice.
 *
 * Rule 1: planning, reading and writing are Spark's own and Python's; only what makes rows of
 * batches is left out. Rule 2: where Spark is not built as it is expected to be, rows are made as
 * ever.
 *
 * It is compiled by Janino, which comes with Spark, against the Spark that it runs in
 * (columnar.py). Janino knows no generics of our own, no lambdas and no annotations.
 */
public final class Columns extends PythonDataSourceV2 implements DataSourceRegister {

    private static final String NAME = "millrace";

    public String shortName() {
        return NAME;
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        Table table = super.getTable(schema, partitioning, properties);
        return table.getClass() == PythonTable.class ? new Readable(this, table.schema()) : table;
    }

    /** The table of the source in Python, of which reads are other ones. */
    private static final class Readable extends PythonTable {

        private final PythonDataSourceV2 source;
        private final StructType columns;

        Readable(PythonDataSourceV2 source, StructType columns) {
            super(source, NAME, columns);
            this.source = source;
            this.columns = columns;
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new Builder(source, columns, options);
        }
    }

    private static final class Builder extends PythonScanBuilder {

        Builder(PythonDataSourceV2 source, StructType columns, CaseInsensitiveStringMap options) {
            super(source, NAME, columns, options);
        }

        public Scan build() {
            return new Read(super.build());
        }
    }

    /** A read, whose factories of readers are ours. */
    private static final class Read implements Scan, SupportsMetadata {

        private final Scan inner;

        Read(Scan inner) {
            this.inner = inner;
        }

        public StructType readSchema() {
            return inner.readSchema();
        }

        public String description() {
            return inner.description();
        }

        public Batch toBatch() {
            return new Once(inner.toBatch());
        }

        public MicroBatchStream toMicroBatchStream(String checkpoint) {
            MicroBatchStream stream = inner.toMicroBatchStream(checkpoint);
            return stream instanceof SupportsTriggerAvailableNow ? new Stream(stream) : stream;
        }

        public CustomMetric[] supportedCustomMetrics() {
            return inner.supportedCustomMetrics();
        }

        public CustomTaskMetric[] reportDriverMetrics() {
            return inner.reportDriverMetrics();
        }

        public Scan.ColumnarSupportMode columnarSupportMode() {
            return Scan.ColumnarSupportMode.PARTITION_DEFINED;
        }

        public scala.collection.immutable.Map getMetaData() {
            return ((SupportsMetadata) inner).getMetaData();
        }
    }

    private static final class Once implements Batch {

        private final Batch inner;

        Once(Batch inner) {
            this.inner = inner;
        }

        public InputPartition[] planInputPartitions() {
            return inner.planInputPartitions();
        }

        public PartitionReaderFactory createReaderFactory() {
            return new Factory(inner.createReaderFactory());
        }
    }

    private static final class Stream implements MicroBatchStream, SupportsTriggerAvailableNow {

        private final MicroBatchStream inner;
        private final SupportsTriggerAvailableNow bounded;

        Stream(MicroBatchStream inner) {
            this.inner = inner;
            this.bounded = (SupportsTriggerAvailableNow) inner;
        }

        public Offset initialOffset() {
            return inner.initialOffset();
        }

        public Offset latestOffset() {
            return inner.latestOffset();
        }

        public Offset latestOffset(Offset start, ReadLimit limit) {
            return bounded.latestOffset(start, limit);
        }

        public Offset reportLatestOffset() {
            return bounded.reportLatestOffset();
        }

        public ReadLimit getDefaultReadLimit() {
            return bounded.getDefaultReadLimit();
        }

        public void prepareForTriggerAvailableNow() {
            bounded.prepareForTriggerAvailableNow();
        }

        public Offset deserializeOffset(String json) {
            return inner.deserializeOffset(json);
        }

        public InputPartition[] planInputPartitions(Offset start, Offset end) {
            return inner.planInputPartitions(start, end);
        }

        public PartitionReaderFactory createReaderFactory() {
            return new Factory(inner.createReaderFactory());
        }

        public void commit(Offset end) {
            inner.commit(end);
        }

        public void stop() {
            inner.stop();
        }
    }

    /** Makes readers of columns, or of rows where that is not to be had. */
    private static final class Factory implements PartitionReaderFactory {

        private final PartitionReaderFactory inner;
        private final boolean isColumnar;

        Factory(PartitionReaderFactory inner) {
            this.inner = inner;
            this.isColumnar = Reader.fits(inner);
        }

        public boolean supportColumnarReads(InputPartition partition) {
            return isColumnar;
        }

        public PartitionReader createReader(InputPartition partition) {
            return inner.createReader(partition);
        }

        public PartitionReader createColumnarReader(InputPartition partition) {
            try {
                return new Reader(inner, partition);
            } catch (InvocationTargetException error) {
                // As it was thrown, whether or not Java would have had it declared.
                Platform.throwException(error.getTargetException());
            } catch (ReflectiveOperationException error) {
                Platform.throwException(error);
            }
            return null;
        }
    }

    /** What Spark's own reader does, without the rows. */
    private static final class Reader implements PartitionReader {

        private static final String METRICS =
                "org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric$";
        private static final String EVALUATOR =
                "org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory$MapInBatchEvaluator";

        private final Object source;
        private final scala.collection.immutable.Map metrics;
        private final scala.collection.Iterator batches;
        private final int width;

        /** Whether all that this needs is there. */
        static boolean fits(PartitionReaderFactory inner) {
            try {
                Object source = field(inner, "source");
                field(inner, "pickledReadFunc");
                field(inner, "outputSchema");
                field(inner, "jobArtifactUUID");
                int given = method(source.getClass(), "createMapInBatchEvaluatorFactory", -1)
                        .getParameterCount();
                if (given == 7) {
                    field(inner, "sessionUUID");
                }
                method(source.getClass(), "readInputSchema", 0);
                method(source.getClass(), "createPythonTaskMetrics", 1);
                method(Class.forName(METRICS), "pythonMetrics", 0);
                Class runner = Class.forName(EVALUATOR + "$$anon$1");
                method(runner, "compute", 3);
                return (given == 6 || given == 7)
                        && runner.getConstructors()[0].getParameterCount() == 2;
            } catch (ReflectiveOperationException error) {
                return false;
            } catch (LinkageError error) {
                return false;
            }
        }

        Reader(PartitionReaderFactory inner, InputPartition partition)
                throws ReflectiveOperationException {
            source = field(inner, "source");
            StructType schema = (StructType) field(inner, "outputSchema");
            width = schema.length();
            Object known = Class.forName(METRICS).getField("MODULE$").get(null);
            metrics = (scala.collection.immutable.Map) call(known, "pythonMetrics", new Object[0]);
            Object[] given = {
                field(inner, "pickledReadFunc"),
                "read_from_data_source",
                call(source, "readInputSchema", new Object[0]),
                schema,
                metrics,
                field(inner, "jobArtifactUUID")
            };
            Method make = method(source.getClass(), "createMapInBatchEvaluatorFactory", -1);
            if (make.getParameterCount() == 7) {
                Object[] more = new Object[7];
                System.arraycopy(given, 0, more, 0, 6);
                more[6] = field(inner, "sessionUUID");
                given = more;
            }
            Object evaluator = call(make.invoke(source, given), "createEvaluator", new Object[0]);
            Object runner = Class.forName(EVALUATOR + "$$anon$1")
                    .getConstructors()[0]
                    .newInstance(new Object[] {evaluator, new int[][] {{0}}});
            Object pickled = call(partition, "pickedPartition", new Object[0]);
            Object row = new GenericInternalRow(new Object[] {pickled});
            Object wrapped = new GenericInternalRow(new Object[] {row});
            TaskContext context = TaskContext.get();
            Object[] asked = {
                one(one(wrapped)), Integer.valueOf(context.partitionId()), context
            };
            batches = (scala.collection.Iterator) call(runner, "compute", asked);
        }

        public boolean next() {
            return batches.hasNext();
        }

        public Object get() {
            ColumnarBatch batch = (ColumnarBatch) batches.next();
            ArrowColumnVector rows = (ArrowColumnVector) batch.column(0);
            ColumnVector[] columns = new ColumnVector[width];
            for (int at = 0; at < width; at++) {
                columns[at] = rows.getChild(at);
            }
            return new ColumnarBatch(columns, batch.numRows());
        }

        public CustomTaskMetric[] currentMetricsValues() {
            scala.collection.immutable.Map now = scala.collection.immutable.Map$.MODULE$.empty();
            scala.collection.Iterator all = metrics.iterator();
            while (all.hasNext()) {
                scala.Tuple2 pair = (scala.Tuple2) all.next();
                now = (scala.collection.immutable.Map)
                        now.updated(pair._1(), ((AccumulatorV2) pair._2()).value());
            }
            try {
                return (CustomTaskMetric[])
                        call(source, "createPythonTaskMetrics", new Object[] {now});
            } catch (ReflectiveOperationException error) {
                return new CustomTaskMetric[0];
            }
        }

        public void close() {}

        private static scala.collection.Iterator one(Object of) {
            return scala.jdk.javaapi.CollectionConverters.asScala(
                    Collections.singletonList(of).iterator());
        }

        /** A field that Scala has named after its class. */
        private static Object field(Object of, String name) throws ReflectiveOperationException {
            Field[] all = of.getClass().getFields();
            for (int at = 0; at < all.length; at++) {
                if (all[at].getName().endsWith("$$" + name)) {
                    return all[at].get(of);
                }
            }
            throw new NoSuchFieldException(name);
        }

        private static Object call(Object of, String name, Object[] given)
                throws ReflectiveOperationException {
            return method(of.getClass(), name, given.length).invoke(of, given);
        }

        /** The method of this name with so many parameters; -1: with any number. */
        private static Method method(Class of, String name, int count)
                throws NoSuchMethodException {
            Method[] all = of.getMethods();
            for (int at = 0; at < all.length; at++) {
                boolean isIt = all[at].getName().equals(name);
                if (isIt && (count < 0 || all[at].getParameterCount() == count)) {
                    return all[at];
                }
            }
            throw new NoSuchMethodException(name);
        }
    }

    /** Writes a jar with what stands here: `SimpleCompiler Columns.java millrace.spark.Columns
     *  Columns.java some.jar`. */
    public static void main(String[] given) throws Exception {
        SimpleCompiler compiler = new SimpleCompiler();
        compiler.cook(given[0], new FileReader(given[0]));
        ZipOutputStream jar = new ZipOutputStream(new FileOutputStream(given[1]));
        Iterator classes = compiler.getBytecodes().entrySet().iterator();
        while (classes.hasNext()) {
            Map.Entry one = (Map.Entry) classes.next();
            String name = ((String) one.getKey()).replace('.', '/') + ".class";
            jar.putNextEntry(new ZipEntry(name));
            jar.write((byte[]) one.getValue());
        }
        jar.putNextEntry(
                new ZipEntry("META-INF/services/" + DataSourceRegister.class.getName()));
        jar.write(Columns.class.getName().getBytes("UTF-8"));
        jar.close();
    }
}
