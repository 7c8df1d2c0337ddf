package io.deltaworks.sources;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A Python source that gets one additional option: the location of its query's checkpoint.
 *
 * <p>Spark passes it only to sources in Java, and only when a query starts. A class with an alias is preferred to the
 * Python source of the same name, which this class asks Spark for. Without this jar the Python source runs as it is,
 * and needs a {@code stateLocation}.
 */
public abstract class CheckpointedSource implements TableProvider, DataSourceRegister {
  /** Set only here: `sources/0` below the checkpoint, or the source's name instead of its number. */
  private static final String CHECKPOINT = "sourceCheckpointLocation";

  private static final String RESCUED = "rescuedDataColumn";
  private static final String MODE = "cloudFiles.schemaEvolutionMode";

  private final String name;

  private CheckpointedSource(String name) {
    this.name = name;
  }

  /** The format {@code s3-sqs}. */
  public static final class S3Sqs extends CheckpointedSource {
    public S3Sqs() {
      super("s3-sqs");
    }
  }

  /** The format {@code kinesis}. */
  public static final class Kinesis extends CheckpointedSource {
    public Kinesis() {
      super("kinesis");
    }
  }

  /** The format {@code cloudFiles}. Adds the column of rescued data to a declared schema if the options ask for it. */
  public static final class CloudFiles extends CheckpointedSource {
    public CloudFiles() {
      super("cloudFiles");
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
      CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(properties);
      String fallback = "rescue".equalsIgnoreCase(options.get(MODE)) ? "_rescued_data" : "";
      String column = options.getOrDefault(RESCUED, fallback);
      boolean isMissing = !column.isEmpty() && Arrays.stream(schema.fieldNames()).noneMatch(column::equalsIgnoreCase);
      return super.getTable(isMissing ? schema.add(column, "string") : schema, partitioning, properties);
    }
  }

  @Override
  public String shortName() {
    return name;
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return inPython(name).inferSchema(options);
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    return new CheckpointedTable(name, schema);
  }

  /** One for each use: it keeps the source that it created with the first options. */
  private static PythonDataSourceV2 inPython(String name) {
    PythonDataSourceV2 source = new PythonDataSourceV2();
    source.setShortName(name);
    return source;
  }

  private static final class CheckpointedTable extends PythonTable {
    private final String name;
    private final StructType schema;

    CheckpointedTable(String name, StructType schema) {
      super(inPython(name), name, schema);
      this.name = name;
      this.schema = schema;
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return () -> new CheckpointedScan(name, schema, options);
    }
  }

  private static final class CheckpointedScan extends PythonScan {
    private final String name;
    private final StructType schema;
    private final CaseInsensitiveStringMap options;

    CheckpointedScan(String name, StructType schema, CaseInsensitiveStringMap options) {
      super(inPython(name), name, schema, options, new Filter[0]);
      this.name = name;
      this.schema = schema;
      this.options = options;
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
      Map<String, String> more = new HashMap<>(options.asCaseSensitiveMap());
      more.put(CHECKPOINT, checkpointLocation);
      CaseInsensitiveStringMap all = new CaseInsensitiveStringMap(more);
      return new PythonScan(inPython(name), name, schema, all, new Filter[0]).toMicroBatchStream(checkpointLocation);
    }
  }
}
